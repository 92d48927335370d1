"""Files that are on the disk when a call returns, their checksums, and arrays in them."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from attend.errors import Damaged
from attend.types import Float32, Int64

READING = threading.Lock()


def check_file(path: Path, written: int) -> None:
    """Raise Damaged unless the file can be read and has the checksum it was written with."""
    try:
        actual = checksum(path)
    except OSError as error:
        raise Damaged(f"{path} cannot be read ({error}).") from error
    if actual != written:
        raise Damaged(f"{path} has checksum {actual:08x}, but {written:08x} was written.")


def check_size(path: Path, written: int) -> None:
    """Raise Damaged unless the file is there with as many bytes as were written."""
    try:
        actual = path.stat().st_size
    except OSError as error:
        raise Damaged(f"{path} cannot be read ({error}).") from error
    if actual != written:
        raise Damaged(f"{path} has {actual} bytes, but {written} were written.")


def checksum(path: Path) -> int:
    """CRC-32: it finds accidents, at a gigabyte a second; nobody is kept out by it."""
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return crc


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


def write_array(path: Path, array: Int64) -> None:
    with open(path, "wb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def write_rows(path: Path, blocks: Iterable[Float32], width: int) -> int:
    """Write blocks (m, d) as one array, of which only a block is in memory; returns its rows.

    `width` is d where there is no block. NumPy's header leaves room for the number of rows to
    grow, so that it is written again once that is known (numpy.lib.format, version 1.0).
    """
    rows = 0
    with open(path, "wb") as file:
        start = _write_header(file, 0, width)
        for block in blocks:
            if rows == 0 and block.shape[1] != width:
                file.seek(0)
                width = block.shape[1]
                start = _write_header(file, 0, width)
            file.write(np.ascontiguousarray(block, dtype=np.float32).data)
            rows += len(block)
        file.seek(0)
        if _write_header(file, rows, width) != start:
            raise AssertionError(f"the header of {path} does not hold {rows} rows")
        file.flush()
        os.fsync(file.fileno())
    return rows


def _write_header(file: BinaryIO, rows: int, width: int) -> int:
    """Returns where the numbers begin."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    np.lib.format.write_array_header_1_0(file, header)
    return file.tell()


def map_array(path: Path) -> Float32:
    """The rows of a file, read when they are used and shared with other processes."""
    mapped: Float32 = _load(path, "r")
    return np.asarray(mapped)


def read_array(path: Path) -> Int64:
    ids: Int64 = _load(path, None)
    return ids


def _load(path: Path, mode: Any) -> Any:
    # One thread at a time: numpy parses the header as Python, and CPython 3.11's parser fails
    # now and then where two threads are in it (github.com/python/cpython/issues/106905).
    with READING:
        try:
            return np.load(path, mmap_mode=mode, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise Damaged(f"{path} cannot be read as an array ({error}).") from error
