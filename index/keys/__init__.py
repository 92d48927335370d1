"""Keys: query → candidates. FAISS and its positions are known in here and nowhere else."""

from index.keys.candidates import Candidates, at_places, divided, joined
from index.keys.choose import Wanted
from index.keys.manifest import FILES, Manifest, Origin, Progress
from index.keys.near import NONE, Near
from index.keys.nearest import Proposed
from index.keys.published import PublishedIndexes
from index.keys.segment import DenseVectors, Keys, Segment
from index.keys.snapshot import Drawn, Snapshot

__all__ = [
    "FILES",
    "NONE",
    "Candidates",
    "DenseVectors",
    "Drawn",
    "Keys",
    "Manifest",
    "Near",
    "Origin",
    "Progress",
    "Proposed",
    "PublishedIndexes",
    "Segment",
    "Snapshot",
    "Wanted",
    "at_places",
    "divided",
    "joined",
]
