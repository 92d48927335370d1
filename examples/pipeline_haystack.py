"""Answer questions with a Haystack pipeline over an Attend collection.

    python examples/pipeline_haystack.py "they took the money twice" "Where is the Eiffel Tower?"

The collection holds the questions of a shop's customers in examples/intents.csv. Its own encoder
searches; a router sends what nothing in it answers past the generator. The generator is a stand-in
that returns its prompt's first source: put one with a language model in its place.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import click
from haystack import Document, Pipeline, component
from haystack.components.builders import PromptBuilder
from haystack.components.routers import ConditionalRouter
from haystack.document_stores.types import DuplicatePolicy

from attend.connect.haystack import AttendDocumentStore, AttendTextRetriever

INTENTS = Path(__file__).with_name("intents.csv")
PROMPT = """Answer from these sources only:
{% for document in documents %}[{{ document.id }}] {{ document.content }}
{% endfor %}Question: {{ question }}"""
ROUTES = [
    {
        "condition": "{{ answered }}",
        "output": "{{ prompt }}",
        "output_name": "prompt",
        "output_type": str,
    },
    {
        "condition": "{{ not answered }}",
        "output": "Nothing here answers that.",
        "output_name": "refusal",
        "output_type": str,
    },
]


@component
class FirstSource:
    """A stand-in for a generator: it answers with the first source of its prompt."""

    @component.output_types(replies=list[str])
    def run(self, prompt: str) -> dict[str, list[str]]:
        return {"replies": [f"As in: {prompt.splitlines()[1]}"]}


def store_in(data: Path) -> AttendDocumentStore:
    """Return a store of the customers' questions in a library."""
    store = AttendDocumentStore(str(data), "desk")
    with INTENTS.open() as file:
        documents = [
            Document(id=row["id"], content=row["text"], meta={"intent": row["intent"]})
            for row in csv.DictReader(file)
        ]
    store.write_documents(documents, DuplicatePolicy.OVERWRITE)
    store.collection.publish()  # asks the texts, so that foreign questions are told from the first
    return store


def pipeline_over(store: AttendDocumentStore) -> Pipeline:
    """Return a pipeline from a question to a reply, or to a refusal."""
    pipeline = Pipeline()
    pipeline.add_component("retriever", AttendTextRetriever(store, top_k=3))
    pipeline.add_component("prompt", PromptBuilder(PROMPT, required_variables="*"))
    pipeline.add_component("router", ConditionalRouter(ROUTES))
    pipeline.add_component("generator", FirstSource())
    pipeline.connect("retriever.documents", "prompt.documents")
    pipeline.connect("retriever.answered", "router.answered")
    pipeline.connect("prompt.prompt", "router.prompt")
    pipeline.connect("router.prompt", "generator.prompt")
    return pipeline


@click.command()
@click.argument("questions", nargs=-1, required=True)
@click.option("--data", type=click.Path(path_type=Path), help="The library; a new one if absent.")
def main(questions: tuple[str, ...], data: Path | None) -> None:
    """Print the answer to each question and the documents that it comes from."""
    with tempfile.TemporaryDirectory() as scratch:
        pipeline = pipeline_over(store_in(data or Path(scratch)))
        for question in questions:
            inputs = {"retriever": {"query": question}, "prompt": {"question": question}}
            results = pipeline.run(inputs, include_outputs_from={"retriever"})
            replies = results.get("generator", {}).get("replies")
            click.echo(f"{question}\n  {replies[0] if replies else results['router']['refusal']}")
            for document in results["retriever"]["documents"]:
                click.echo(f"  {document.score:.2f} {document.meta['intent']}: {document.content}")


if __name__ == "__main__":
    main()
