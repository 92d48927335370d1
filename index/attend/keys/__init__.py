"""Keys: query → candidates. FAISS and its positions are known in here and nowhere else."""

from attend.keys.files import FILES, IndexOrigin, Manifest, Progress, PublishedIndexes
from attend.keys.segment import Delta, Segment
from attend.keys.snapshot import Image, Proposals, SearchableKeys, Snapshot
from attend.keys.vectors import IndexTarget

__all__ = [
    "FILES",
    "Delta",
    "Image",
    "IndexOrigin",
    "IndexTarget",
    "Manifest",
    "Progress",
    "Proposals",
    "PublishedIndexes",
    "SearchableKeys",
    "Segment",
    "Snapshot",
]
