"""Answer questions with a LlamaIndex query engine over an Attend collection.

    python examples/engine_llama_index.py "they took the money twice" "Where is the Eiffel Tower?"

The collection holds the questions of a shop's customers in examples/intents.csv. Its own encoder
searches, and where nothing in it answers a question the engine gets no nodes and says so. The
language model is a stand-in that returns its prompt's first source: put yours in its place.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from typing import Any

import click
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms import CompletionResponse, MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import TextNode

import attend
from attend.connect.llama_index import AttendIndexRetriever, AttendIndexStore

INTENTS = Path(__file__).with_name("intents.csv")


class FirstSource(MockLLM):
    """A stand-in for a language model: it answers with the first source of its prompt."""

    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:
        metadata, text, *_ = prompt.split("---------------------")[1].strip().split("\n\n")
        return CompletionResponse(text=f"As in: {text} ({metadata})")


def engine_over(data: Path) -> RetrieverQueryEngine:
    """Return a query engine over the customers' questions, which it stores in a library."""
    collection = attend.open(data).ensure("desk")
    with INTENTS.open() as file:
        nodes = [
            TextNode(id_=row["id"], text=row["text"], metadata={"intent": row["intent"]})
            for row in csv.DictReader(file)
        ]
    AttendIndexStore(collection).add(nodes)
    collection.publish()  # asks the texts, so that foreign questions are told from the first search
    retriever = AttendIndexRetriever(collection, similarity_top_k=3)
    model = FirstSource(callback_manager=CallbackManager())
    return RetrieverQueryEngine.from_args(retriever, llm=model)


@click.command()
@click.argument("questions", nargs=-1, required=True)
@click.option("--data", type=click.Path(path_type=Path), help="The library; a new one if absent.")
def main(questions: tuple[str, ...], data: Path | None) -> None:
    """Print the answer to each question and the nodes that it comes from."""
    with tempfile.TemporaryDirectory() as scratch:
        engine = engine_over(data or Path(scratch))
        for question in questions:
            response = engine.query(question)
            nodes = response.source_nodes
            click.echo(f"{question}\n  {response if nodes else 'Nothing here answers that.'}")
            for node in nodes:
                click.echo(f"  {node.score:.2f} {node.metadata['intent']}: {node.text}")


if __name__ == "__main__":
    main()
