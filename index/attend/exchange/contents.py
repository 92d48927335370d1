"""What a snapshot holds, and the names that its files can have."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attend.api.base import NAME_PATTERN
from attend.keys import FILES

FORMAT = 1
MANIFEST = "manifest.json"
DATABASE = "documents.db"
# An index of an earlier version had its vectors in vectors.faiss; it is made anew.
_OF_INDEX = "|".join(map(re.escape, (*FILES, "vectors.faiss")))
FILE = re.compile(
    rf"collections/({NAME_PATTERN.strip('^$')})/"
    rf"(documents\.db|keys/[0-9a-z]{{1,64}}/(current|\d{{1,18}}/({_OF_INDEX})))"
)
"""Every name that a file in a snapshot can have."""

Progress = Callable[[str, float], None]
"""Called with what is done, and the share of it that is done, 0 to 1."""


@dataclass(frozen=True)
class Contents:
    """What a snapshot holds.

    Attributes:
        collections: the figures of each collection by its name: documents, keys, change.
        aliases: the collection of each alias.
        files: (size in bytes, SHA-256) of each file by its name.
    """

    created: str
    collections: Mapping[str, Mapping[str, int]]
    aliases: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(size for size, _ in self.files.values())

    def json(self) -> dict[str, Any]:
        """Without the files, which only a program wants to see."""
        return {
            "created": self.created,
            "collections": dict(self.collections),
            "aliases": dict(self.aliases),
            "bytes": self.size,
        }
