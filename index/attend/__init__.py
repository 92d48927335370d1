"""Attend: a database as an attention layer.

Documents are keys with values; a query attends to them, and the answer is the best of
them (hard) or the blend of their values (soft). `Data` opens a folder of collections;
`Collection` takes documents and answers queries.
"""

import os

# Before any library that reads them is imported; a user's own setting stays.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from attend.collection import Collection
from attend.data import DEFAULT_COLLECTION, Data
from attend.errors import AttendError
from attend.search.answers import Answer, Hit
from attend.types import Document

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_COLLECTION",
    "Answer",
    "AttendError",
    "Collection",
    "Data",
    "Document",
    "Hit",
    "__version__",
]
