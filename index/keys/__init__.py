"""Keys: query → candidates. FAISS and its positions are known in here and nowhere else."""

from index.keys.published import Manifest, Origin, Progress, PublishedIndexes
from index.keys.segment import DenseVectors, Segment
from index.keys.snapshot import Candidates, Snapshot

__all__ = [
    "Candidates",
    "DenseVectors",
    "Manifest",
    "Origin",
    "Progress",
    "PublishedIndexes",
    "Segment",
    "Snapshot",
]
