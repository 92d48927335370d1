"""Files that are on the disk when a call returns, and their checksums."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from index.errors import Damaged


def check_file(path: Path, written: int) -> None:
    """Raise Damaged unless the file can be read and has the checksum it was written with."""
    try:
        found = checksum(path)
    except OSError as error:
        raise Damaged(f"{path} cannot be read ({error}).") from error
    if found != written:
        raise Damaged(f"{path} has checksum {found:08x}, but {written:08x} was written.")


def checksum(path: Path) -> int:
    """CRC-32: it finds accidents, at a gigabyte a second; nobody is kept out by it."""
    found = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            found = zlib.crc32(block, found)
    return found


def write_synced(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
