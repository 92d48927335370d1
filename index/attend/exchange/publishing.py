"""Nothing half-written: what is exported is made under another name and moved when it is whole."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attend.errors import Conflict
from attend.keys.files import sync_file, sync_folder, write_synced


@contextmanager
def new_folder(target: Path, *, force: bool = False) -> Iterator[Path]:
    """A folder to fill, which becomes `target` when the block ends without an error.

    Raises Conflict where something is at `target` already, unless `force` replaces it.
    """
    check_free(target, force=force)
    target.parent.mkdir(parents=True, exist_ok=True)
    making = _beside(target, "making")
    making.mkdir()
    try:
        yield making
        for path in sorted(making.rglob("*")):
            sync_folder(path) if path.is_dir() else sync_file(path)
        _exchange(making, target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def write_file(target: Path, content: bytes, *, force: bool = False) -> None:
    """Write a file whole or not at all; Conflict as in `new_folder`."""
    check_free(target, force=force)
    target.parent.mkdir(parents=True, exist_ok=True)
    making = _beside(target, "making")
    try:
        write_synced(making, content)
        making.replace(target)
        sync_folder(target.parent)
    finally:
        making.unlink(missing_ok=True)


def check_free(target: Path, *, force: bool = False) -> None:
    """Raise Conflict unless `target` is absent, an empty folder, or may be replaced."""
    empty = target.is_dir() and not any(target.iterdir())
    if force or empty or not (target.exists() or target.is_symlink()):
        return
    raise Conflict(
        f"{target} is there already; choose another name, or replace it and all it holds with "
        f"--force."
    )


def _exchange(making: Path, target: Path) -> None:
    """No name can be given to a folder while another has it: the old one steps aside first."""
    old = _beside(target, "old")
    if target.exists() or target.is_symlink():
        target.rename(old)
    try:
        making.rename(target)
    except OSError:
        with suppress(FileNotFoundError):
            old.rename(target)
        raise
    if old.is_dir() and not old.is_symlink():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.unlink(missing_ok=True)


def _beside(target: Path, why: str) -> Path:
    """In the same folder, so that renaming never copies."""
    return target.parent / f".{target.name}.{why}-{secrets.token_hex(4)}"
