"""What the pages are tried on: small collections with every kind of value, and hostile ones."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from attend import Collection, Data
from attend.core.settings import Tuning
from attend.projection import given, identity

TOPICS = {
    "sea": "a captain sails a ship over the sea to hunt a white whale",
    "horror": "a count leaves his dark castle at night for the city",
    "garden": "roses and apples grow in the quiet garden behind the house",
    "space": "a rocket flies to the moon and the crew repairs the engine",
}
PLACES = ("harbour", "village", "island", "tower", "market", "forest", "river", "bridge")
SCRIPT = "<script>window.harmed = 1</script>"
IMAGE = "<img src=x onerror='window.harmed = 1'>"
RIGHT_TO_LEFT = "abc \u202e\u2067 gnp.exe \u200f שלום \u2069"
LONG = "w" * 100_000


def png() -> str:
    """A picture of one pixel as a data address."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixel = zlib.compress(b"\x00\x30\x50\xc0")
    whole = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixel)
    whole += chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(whole).decode()


KINDS: dict[str, list[Any]] = {
    "number": [3.5, 7, -2.25, 40, 0, 1e9],
    "category": ["red", "blue", "red", "green", "blue", "red"],
    "labels": [["a", "b"], ["b"], ["c", "a"], ["b", "c", "d"], ["a"], ["d"]],
    "boolean": [True, False, True, True, False, True],
    "vector": [
        [1.0, 0.5, -1.0],
        [0.0, 1.0, 0.25],
        [0.5, 0.5, 0.5],
        [1, 2, 3],
        [0, 0, 1],
        [9, 1, 0],
    ],
    "text": [f"Sentence number {at} about one thing." for at in range(6)],
    "image": [png(), "https://pictures.example/a.png", png(), png(), png(), png()],
    "object": [{"stars": at / 2, "shelf": "ab"[at % 2], "tags": ["x"]} for at in range(6)],
    "deep": [{"parts": [{"n": at, "of": ["a", {"b": "c" * 60}]}]} for at in range(6)],
    "mixed": [1, "two", [3], {"four": 4}, None, True],
}


def build(folder: Path, encoder: str) -> None:
    """Every collection, in a data folder that is there."""
    data = Data(folder)
    books(data.create("books", encoder=encoder))
    for kind, values in KINDS.items():
        made = data.create(f"of-{kind}", encoder=encoder)
        topics = [*TOPICS.values(), "a clock strikes", "snow falls on the hill"]
        made.upsert(
            [
                {"id": f"{kind}-{at}", "text": topics[at], "value": value}
                for at, value in enumerate(values)
            ]
        )
    hostile(data.create("hostile", encoder=encoder))
    points(data.create("spots", dimension=3))
    data.create("empty", dimension=3)
    rated(data.create("rated", encoder=encoder))
    many = [
        {"id": f"m{at}", "text": f"{TOPICS['sea']} {at}", "value": {"n": at}} for at in range(150)
    ]
    data.create("many", encoder=encoder).upsert(many)
    data.close()


def books(made: Collection) -> None:
    """Eighty books with four versions: as it is, learned, of two heads, and calibrated."""
    made.upsert(
        [
            {
                "id": f"{topic}-{at}",
                "text": f"{text}, near the {PLACES[at % len(PLACES)]} number {at}",
                "value": {"price": 5 + at / 4, "shelf": topic},
                "payload": {
                    "title": f"{topic.title()} {PLACES[at % len(PLACES)]} {at}",
                    "shelf": topic,
                    "year": 1900 + 3 * at,
                    "tags": [topic, PLACES[at % len(PLACES)]],
                },
            }
            for topic, text in TOPICS.items()
            for at in range(20)
        ]
    )
    width = made.settings.dimension
    moved = np.eye(width) + 0.15 * np.random.default_rng(5).standard_normal((width, width))
    versions = [given(moved, np.eye(width), kind="learned")]
    halves = np.stack([np.eye(width)[: width // 2], np.eye(width)[width // 2 :]])
    versions.append(given(halves, halves, kind="given"))
    for each in versions:
        made.add_projection(each)
    plain = identity(width)
    tuning = Tuning(scale=(20.0,), null=(12.0,), threshold=0.6, attend=100, scorer="dot")
    made.store.add_projection(
        plain.kind, plain.to_bytes(), plain.fingerprint, {}, tuning=tuning.stored()
    )


def points(made: Collection) -> None:
    """Vectors, which are asked for by vectors."""
    made.upsert(
        [
            {
                "id": f"p{at}",
                "vector": np.eye(3)[at % 3].tolist(),
                "value": at,
                "payload": {"n": at},
            }
            for at in range(9)
        ]
    )


def rated(made: Collection) -> None:
    """Documents that two users rated, with a description of the collection."""
    about = {"title": "Rated tales", "licence": "CC0", "source": "https://example.org/tales"}
    made.configure(about=about | {"description": "Tales with ratings of two users."})
    tales = [
        {"id": f"{topic}-{at}", "text": f"{text} {at}", "payload": {"topic": topic}}
        for topic, text in TOPICS.items()
        for at in range(6)
    ]
    made.upsert(tales)
    rated_by = [("ann", "sea", 5), ("ann", "garden", 1), ("bob", "space", 4)]
    made.add_interactions(
        [
            {"user": user, "id": f"{topic}-{at}", "value": value, "time": f"2024-05-0{at + 1}"}
            for user, topic, value in rated_by
            for at in range(3)
        ],
    )


def hostile(made: Collection) -> None:
    """Documents that try to be more than text, in every place that a page shows; two versions."""
    width = made.settings.dimension
    made.add_projection(given(np.eye(width), np.eye(width), kind="given"))
    nasty = [
        SCRIPT,
        IMAGE,
        RIGHT_TO_LEFT,
        LONG,
        "'; alert(1) //",
        "{{ 7 * 7 }}",
        "\U0001f600 \U0001f433",
    ]
    made.upsert(
        [
            {
                "id": f"{text[:200]}#{at}",
                "text": f"whale {text}",
                "value": {SCRIPT: text[:2000], "plain": IMAGE},
                "payload": {"title": text[:3000], IMAGE: text[:300], "year": at},
            }
            for at, text in enumerate(nasty)
        ]
    )
    made.add_interactions(
        [
            {"user": SCRIPT, "id": f"{text[:200]}#{at}", "value": text}
            for at, text in enumerate(nasty)
        ]
    )
