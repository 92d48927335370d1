"""What a published generation says of itself, and whether it belongs to a database."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from attend.errors import Damaged, ManifestMismatch
from attend.keys.quantising import CODES, LISTS
from attend.types import Json

FORMAT = 2
VECTORS, KEYS, DOCUMENTS, MANIFEST = "vectors.npy", "keys.npy", "documents.npy", "manifest.json"
FILES = (VECTORS, KEYS, DOCUMENTS, MANIFEST, LISTS, CODES)
"""What a generation may consist of."""


@dataclass(frozen=True)
class IndexOrigin:
    """What a manifest must agree with."""

    uuid: str
    encoder: str
    dimension: int
    layout: str


class Progress(NamedTuple):
    """How far the database has come, and which publications it knows of."""

    last_key: int
    last_removal: int
    published: Sequence[str]


@dataclass(frozen=True)
class Manifest:
    """What a generation holds, and of which database it is the image.

    `index` says which kind of index was chosen and what was measured (`attend.keys.choose`).
    `checksums` are those of the files and `sizes` their bytes, `seal` is that of all the rest.
    """

    format: int
    generation: int
    uuid: str
    encoder: str
    dimension: int
    layout: str
    keys: int
    last_key: int
    last_removal: int
    nonce: str
    checksums: dict[str, int]
    sizes: dict[str, int]
    index: dict[str, Json]
    seal: int = 0

    def expected_seal(self) -> int:
        """CRC-32 of all the rest."""
        return zlib.crc32(json.dumps(asdict(replace(self, seal=0)), sort_keys=True).encode())

    def check_origin(self, expected: IndexOrigin, folder: Path) -> None:
        """Raise ManifestMismatch unless it is the image of this database."""
        for name, value in asdict(expected).items():
            actual = getattr(self, name)
            if actual != value:
                raise ManifestMismatch(
                    f"The index in {folder} was built for {name} {actual!r}, but the database "
                    f"says {value!r}. If the database is the right one, run "
                    f"'attend verify --mend' to build the index from it again."
                )

    def check_progress(self, has: Progress, folder: Path) -> None:
        """Raise ManifestMismatch if it is beyond the database, or unknown to it."""
        if self.last_key > has.last_key or self.last_removal > has.last_removal:
            raise ManifestMismatch(
                f"The index in {folder} has seen key {self.last_key} and removal "
                f"{self.last_removal}, but the database has come only to {has.last_key} and "
                f"{has.last_removal}: it is an older copy. Put the newer database back, or run "
                f"'attend verify --mend' to build the index from this one."
            )
        if self.nonce not in has.published:
            raise ManifestMismatch(
                f"The index in {folder} is publication {self.nonce}, of which the "
                f"database knows nothing: the database is another copy, and its keys may be "
                f"others under the same numbers. Put the other copy back, or run 'attend "
                f"verify --mend' to build the index from this one."
            )


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a generation.

    Raises:
        Damaged: it cannot be read, or is of an earlier version of this program.
        ManifestMismatch: it is of another one.
    """
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
        if content.get("format") == 1:
            raise Damaged(f"{folder / MANIFEST} is of an earlier version of this program.")
        if content.get("format") != FORMAT:
            raise ManifestMismatch(
                f"{folder / MANIFEST} has format {content.get('format')!r}, but this program reads "
                f"{FORMAT}. Run 'attend verify --mend' to write it anew."
            )
        return Manifest(**content)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise Damaged(f"{folder / MANIFEST} cannot be read ({error}).") from error
