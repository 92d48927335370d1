"""A LangChain chain that answers from documents, and says when nothing in them answers.

    python examples/chain_langchain.py examples/intents.csv "they took the money twice"

The documents are the rows of the file. A stand-in takes the place of the language model and quotes
the first source; give any chat model to `chain` instead.
"""

from __future__ import annotations

import csv
from operator import itemgetter
from typing import Any

import click
from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompt_values import PromptValue
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableBranch, RunnableLambda, RunnablePassthrough

from attend.connect.langchain import AttendRetriever, AttendVectorStore

NOTHING = "Nothing here answers that."

PROMPT = ChatPromptTemplate.from_template(
    "Answer from these sources only:\n{sources}\n\nQuestion: {question}"
)


def sources(documents: list[Document]) -> str:
    """Return documents as the lines of a prompt."""
    return "\n".join(f"[{document.id}] {document.page_content}" for document in documents)


def stand_in(prompt: PromptValue) -> AIMessage:
    """Quote the first source, in place of a language model."""
    return AIMessage(prompt.to_string().splitlines()[1])


def chain(retriever: AttendRetriever, model: Runnable[PromptValue, Any]) -> Runnable[Any, str]:
    """Return a chain from {"question": …} to an answer; without sources the model is not asked."""
    retrieved = RunnablePassthrough.assign(documents=itemgetter("question") | retriever)
    with_sources = RunnablePassthrough.assign(
        sources=itemgetter("documents") | RunnableLambda(sources)
    )
    answered = with_sources | PROMPT | model | StrOutputParser()
    return retrieved | RunnableBranch(
        (itemgetter("documents"), answered), RunnableLambda(lambda _: NOTHING)
    )


@click.command()
@click.argument("file", type=click.File())
@click.argument("questions", nargs=-1, required=True)
@click.option("--data", default="library", help="The folder of the library.")
def main(file: Any, questions: tuple[str, ...], data: str) -> None:
    """Answer QUESTIONS from the rows of FILE, a CSV file with the columns id, text and intent."""
    documents = [
        Document(id=row["id"], page_content=row["text"], metadata={"intent": row["intent"]})
        for row in csv.DictReader(file)
    ]
    store = AttendVectorStore.from_documents(documents, where=data, collection="desk")
    store.collection.publish()  # from now on it tells questions that are foreign to it
    retriever = AttendRetriever(collection=store.collection, k=3)
    answers = chain(retriever, RunnableLambda(stand_in))
    for question in questions:
        click.echo(f"{question}\n  {answers.invoke({'question': question})}")
        soft = retriever.answer(question, value="intent")
        if soft.answered:
            click.echo(f"  intent: {soft.answer['value']}")


if __name__ == "__main__":
    main()
