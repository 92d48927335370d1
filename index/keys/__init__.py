"""Keys: query → candidates. FAISS and its positions are known in here and nowhere else."""

from index.keys.published import Manifest, Origin, Progress, PublishedIndexes
from index.keys.segment import DenseVectors, Keys, Segment
from index.keys.snapshot import Candidates, Snapshot, joined

__all__ = [
    "Candidates",
    "DenseVectors",
    "Keys",
    "Manifest",
    "Origin",
    "Progress",
    "PublishedIndexes",
    "Segment",
    "Snapshot",
    "joined",
]
