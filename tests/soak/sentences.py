"""A collection with the default encoder under load: no oracle knows its embeddings, and yet a
document's own text has to find it first. What a model of its size does to memory shows here, and
not with the encoder whose embeddings are known."""

from __future__ import annotations

import random
import threading

from tests.soak.client import Client
from tests.soak.load import SEARCH, SMALL, WORDS, Worker

NAME = "sentences"
PATH = f"/v1/collections/{NAME}"
READERS = 2
DOCUMENTS = 300
LONGEST = 60
"""Words of a text, at most: calls of the model come in many shapes."""

FRESH = 0.1
"""The share of steps that write a document before they look for it."""


def make(address: tuple[str, int]) -> None:
    """Make the collection, and let its encoder be loaded: the times of the load are without it."""
    client = Client(address)
    client.ask("PUT", PATH, {"encoder": "all-MiniLM-L6-v2"})
    client.ask("POST", f"{PATH}/search", {"query": WORDS[0]})
    client.close()


def drop(address: tuple[str, int]) -> None:
    client = Client(address)
    client.ask("DELETE", PATH)
    client.close()


class SentenceReader(Worker):
    """Looks for documents of its own by their texts; now and then it writes one anew."""

    def __init__(
        self, number: int, address: tuple[str, int], stop: threading.Event, seed: int
    ) -> None:
        super().__init__(address, stop)
        self.number = number
        self.random = random.Random(seed)
        self.texts: dict[str, str] = {}

    def step(self) -> None:
        if len(self.texts) < DOCUMENTS or self.random.random() < FRESH:
            self._write()
        id = self.random.choice(sorted(self.texts))
        body = {"query": self.texts[id], "k": 3, "memory": 0}
        answer = self.ask(SEARCH, "POST", f"{PATH}/search", body)
        found = answer["hits"][0]["id"]
        assert found == id, f"{self.texts[id]!r} found {found!r} before its own {id!r}"

    def _write(self) -> None:
        id = f"{self.number}-{self.random.randrange(DOCUMENTS)}"
        words = self.random.choices(WORDS, k=self.random.randint(1, LONGEST))
        # Nobody else's: of a few words there would be several alike.
        self.texts[id] = " ".join([str(self.random.randrange(10**9)), *words])
        self.ask(SMALL, "POST", f"{PATH}/documents", [{"id": id, "text": self.texts[id]}])
