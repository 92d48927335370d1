"""Collections that really learned: a gain that is proved, and a version in use without a proof."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest import mock

from attend import Collection, Data
from attend.learning import ranking, train
from attend.learning.ranking_model import RECIPE
from attend.write.feedback import add_feedback

SOUNDS = {
    "cat": "meowing",
    "dog": "barking",
    "cow": "mooing",
    "horse": "neighing",
    "pig": "grunting",
    "duck": "quacking",
    "sheep": "bleating",
    "lion": "roaring",
}
PLACES = ("harbour", "village", "island", "tower", "market", "forest")
PAIRS = [(animal, place) for animal in SOUNDS for place in PLACES]


def build(folder: Path, encoder: str) -> None:
    """Three collections: of what is learned for each place alike, of nothing to learn, untaught."""
    data = Data(folder)
    for name in ("proved", "unproved", "untaught"):
        documents = [
            {"id": f"{animal} {place}", "text": f"The {animal} is in the {place}."}
            for animal, place in PAIRS
        ]
        data.create(name, encoder=encoder).upsert(documents)
    proved, unproved = data.collection("proved"), data.collection("unproved")
    teach(proved, lambda animal, place: f"{SOUNDS[animal]} {place}")
    with mock.patch.object(ranking, "RECIPE", replace(RECIPE, steps=(60, 60))):
        assert train(proved, parts=["matrices", "words"])["promoted"]
    teach(unproved, lambda animal, place: f"the {animal} of the {place}")
    version = train(unproved, parts=["words"], promote=False)["version"]
    assert isinstance(version, int)
    unproved.activate(version)
    data.close()


def teach(made: Collection, question: object) -> None:
    """One question for each document."""
    assert callable(question)
    add_feedback(made, [{"query": question(*pair), "id": " ".join(pair)} for pair in PAIRS])
