"""Keys: query → candidates. FAISS and its positions are known in here and nowhere else."""

from attend.keys.choose import Wanted
from attend.keys.delta import Delta
from attend.keys.manifest import FILES, IndexOrigin, Manifest, Progress
from attend.keys.nearest import NONE, Near, Proposed
from attend.keys.protocol import SearchableKeys
from attend.keys.published import PublishedIndexes
from attend.keys.segment import Segment
from attend.keys.snapshot import Drawn, Snapshot

__all__ = [
    "FILES",
    "NONE",
    "Delta",
    "Drawn",
    "IndexOrigin",
    "Manifest",
    "Near",
    "Progress",
    "Proposed",
    "PublishedIndexes",
    "SearchableKeys",
    "Segment",
    "Snapshot",
    "Wanted",
]
