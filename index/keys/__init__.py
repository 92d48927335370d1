"""Keys: query → candidates. FAISS and its positions are known in here and nowhere else."""

from index.keys.candidates import Candidates, divided, joined
from index.keys.choose import Wanted
from index.keys.published import FILES, Manifest, Origin, Progress, PublishedIndexes
from index.keys.segment import DenseVectors, Keys, Segment
from index.keys.snapshot import Drawn, Proposed, Snapshot

__all__ = [
    "FILES",
    "Candidates",
    "DenseVectors",
    "Drawn",
    "Keys",
    "Manifest",
    "Origin",
    "Progress",
    "Proposed",
    "PublishedIndexes",
    "Segment",
    "Snapshot",
    "Wanted",
    "divided",
    "joined",
]
