"""Keys: query → candidates. FAISS and its positions are known in here and nowhere else."""

from attend.keys.choose import Wanted
from attend.keys.manifest import FILES, Manifest, Origin, Progress
from attend.keys.near import NONE, Near
from attend.keys.nearest import Proposed
from attend.keys.published import PublishedIndexes
from attend.keys.segment import DenseVectors, Segment
from attend.keys.snapshot import Drawn, Snapshot

__all__ = [
    "FILES",
    "NONE",
    "DenseVectors",
    "Drawn",
    "Manifest",
    "Near",
    "Origin",
    "Progress",
    "Proposed",
    "PublishedIndexes",
    "Segment",
    "Snapshot",
    "Wanted",
]
