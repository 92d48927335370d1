"""Keys: query → candidates. FAISS and its positions are known in here and nowhere else."""

from attend.keys.choose import IndexTarget
from attend.keys.files import FILES, IndexOrigin, Manifest, Progress
from attend.keys.nearest import Proposals
from attend.keys.published import PublishedIndexes
from attend.keys.segment import Delta, Segment
from attend.keys.snapshot import Image, SearchableKeys, Snapshot

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
