"""Collections that really learned: a gain that is proved, and a version in use without a proof."""

from __future__ import annotations

from pathlib import Path

from attend import Collection, Data
from attend.learning import train
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
PLACES = ("harbour", "village", "island", "tower", "market", "forest", "river", "bridge")


def build(folder: Path, encoder: str) -> None:
    """Three collections: of what is learned for each place alike, of nothing to learn, untaught."""
    data = Data(folder)
    proved = farm(data.create("proved", encoder=encoder))
    add_feedback(
        proved,
        [
            {"query": f"{sound} {place}", "id": f"{animal} {place}"}
            for animal, sound in SOUNDS.items()
            for place in PLACES
        ],
    )
    assert train(proved)["promoted"]
    unproved = farm(data.create("unproved", encoder=encoder))
    add_feedback(
        unproved,
        [
            {"query": f"the {animal} of the {place}", "id": f"{animal} {place}"}
            for animal in SOUNDS
            for place in PLACES
        ],
    )
    version = train(unproved, parts=["words"], promote=False)["version"]
    assert isinstance(version, int)
    unproved.activate(version)
    farm(data.create("untaught", encoder=encoder))
    data.close()


def farm(made: Collection) -> Collection:
    """A document for each animal in each place."""
    made.upsert(
        {"id": f"{animal} {place}", "text": f"The {animal} is in the {place}."}
        for animal in SOUNDS
        for place in PLACES
    )
    return made
