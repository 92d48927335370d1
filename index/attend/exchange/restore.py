"""Restore collections from a backup: it is hostile until it was proved to be ours.

Sizes are checked before anything is written, checksums while it is, and each database before
anything in it runs (`attend.store.copying`). All of it has to end within a time. Indexes are
built again: FAISS trusts its files, and nobody can vouch for those of a backup.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError

from attend.api.base import NAME_PATTERN, invalid, parse
from attend.api.documents import CollectionSettings
from attend.collection.data import Data, check_name
from attend.core.errors import CannotWrite, CollectionExists, Damaged, InvalidRequest, LimitExceeded
from attend.core.settings import Settings
from attend.core.types import OnStage
from attend.engines.engine import MAX_ALIASES
from attend.engines.local import version_problems
from attend.exchange.backup import MANIFEST, BackupContents, Figures, database_of, read_figures
from attend.exchange.plain_tar import PlainFile, plain_files
from attend.keys.files import sync_file, sync_folder
from attend.store import Store
from attend.store.checks import printable
from attend.store.copying import adopt
from attend.values import parse_type

FILE = re.compile(
    rf"collections/({NAME_PATTERN.strip('^$')})/"
    r"(documents\.db|keys/[0-9a-z]{1,64}/(current|\d{1,18}/[a-z]{1,16}\.[a-z]{1,8}))"
)
"""Every name of a file in a backup. Versions before this one put indexes in, which are skipped."""

MAX_MANIFEST = 4 * 1024 * 1024

SECONDS = 60.0
"""The time in which a backup is restored, or a second for each MiB if that is more."""

BYTES_A_SECOND = 1024 * 1024

_CONTENTS = TypeAdapter(BackupContents)


def restore_backup(
    source: IO[bytes],
    data: Data,
    names: Sequence[str] | None = None,
    *,
    into: str | None = None,
    limit: int | None = None,
    check_settings: Callable[[Settings], object] = lambda settings: None,
    on_progress: OnStage = lambda stage, share: None,
) -> BackupContents:
    """Restore the collections of a backup; existing collections stay as they are.

    Nothing of it is visible until everything was read and checked.

    Args:
        source: the backup, read from its current position to its end.
        names: the collections to restore; all of them, with the aliases, if None.
        into: another name for the only collection to restore.
        limit: the most bytes that its files may have together.
        check_settings: called with the settings of each collection; raises an error to refuse it.

    Raises:
        Damaged: it is not a backup, was changed, or takes too long to check.
        CollectionExists: a name is that of an existing collection or alias.
        InvalidRequest: it does not have a collection of a name.
    """
    data.capabilities.check("snapshots")
    data.check_writable()
    deadline = Deadline()
    making = data.folder / f"making-{secrets.token_hex(8)}"
    try:
        files = plain_files(source, deadline.check)
        contents = _read_manifest(files)
        if limit is not None and contents.size > limit:
            raise Damaged(
                f"The backup's files have {contents.size:,} bytes, but at most {limit:,} are "
                f"restored here. Restore it with 'attend import --snapshot'."
            )
        deadline.extend(contents.size)
        targets = _targets(contents, names, into)
        aliases = contents.aliases if names is None and into is None else {}
        _check_free(data, targets.values(), aliases)
        # Of their owner alone: whoever reads them reads every text.
        data.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (making, making / "collections"):
            folder.mkdir(mode=0o700)
        places = {database_of(name): making / database_of(new) for name, new in targets.items()}
        _unpack(files, contents, places, making, on_progress)
        for name in targets:
            on_progress(f"check {name}", 0.0)
            figures = contents.collections[name]
            check_settings(_adopted(places[database_of(name)], figures, deadline))
        for alias, collection in aliases.items():
            (making / "collections" / alias).symlink_to(collection)
        _move(making, data.folder / "collections")
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return contents


class Deadline:
    """The end of the time in which a backup is restored."""

    def __init__(self) -> None:
        self._start, self._seconds = time.monotonic(), SECONDS

    def extend(self, size: int) -> None:
        """Give a large backup more time."""
        self._seconds = max(SECONDS, size / BYTES_A_SECOND)

    def is_over(self) -> bool:
        return time.monotonic() > self._start + self._seconds

    def check(self) -> None:
        if self.is_over():
            raise Damaged(
                f"The backup could not be checked within {self._seconds:.0f} s, and nothing was "
                f"restored. Try again when the machine is less busy, and only if you trust it."
            )


# -- the manifest ---------------------------------------------------------------------------


def _read_manifest(files: Iterator[PlainFile]) -> BackupContents:
    first = next(files, None)
    if first is None or first.name != MANIFEST or first.size > MAX_MANIFEST:
        raise Damaged(
            f"This is not a backup: it does not begin with {MANIFEST}. Make one with 'attend "
            f"export --snapshot FILE'."
        )
    try:
        contents = _CONTENTS.validate_json(b"".join(first.content))
    except ValidationError as error:
        reason = printable(f"{invalid(error)}")
        raise Damaged(f"The backup's {MANIFEST} cannot be read ({reason}).") from error
    _check_names(contents)
    return contents


def _check_names(contents: BackupContents) -> None:
    for name in contents.files:
        if not FILE.fullmatch(name):
            raise Damaged(f"The backup holds {name!r:.200}, which does not belong to a collection.")
    for name in [*contents.collections, *contents.aliases]:
        if not re.fullmatch(NAME_PATTERN, name):
            raise Damaged(f"The backup names a collection {name!r:.200}, not a valid name.")
    for name in contents.collections:
        if database_of(name) not in contents.files:
            raise Damaged(f"The backup lacks the database of the collection {name!r}.")
    for alias, name in contents.aliases.items():
        if name not in contents.collections or alias in contents.collections:
            raise Damaged(f"The backup's alias {alias!r} stands for none of its collections.")


def _targets(
    contents: BackupContents, names: Sequence[str] | None, into: str | None
) -> dict[str, str]:
    """Return the new name of each collection to restore, by its name in the backup."""
    selected = list(contents.collections) if names is None else list(names)
    for name in selected:
        if name not in contents.collections:
            present = ", ".join(contents.collections) or "none"
            raise InvalidRequest(f"The backup has no collection {name!r}; it has {present}.")
    if into is None:
        return {name: name for name in selected}
    check_name(into)
    if len(selected) != 1:
        raise InvalidRequest(
            f"The backup has {len(selected)} collections, but one was expected; name one."
        )
    return {selected[0]: into}


def _check_free(data: Data, names: Iterable[str], aliases: Collection[str]) -> None:
    stored = data.aliases()
    clashes = sorted({*data.names(), *stored}.intersection([*names, *aliases]))
    if clashes:
        raise _taken(clashes[0])
    if len(stored) + len(aliases) > MAX_ALIASES:
        raise LimitExceeded(
            f"The backup has {len(aliases)} aliases, and with the {len(stored)} that exist they "
            f"are more than {MAX_ALIASES}. Delete some, or restore into another folder."
        )


def _taken(name: str) -> CollectionExists:
    return CollectionExists(
        f"A collection or an alias {name!r} exists already, and nothing was restored. "
        f"Delete it, or restore into another folder.",
        field="collection",
    )


# -- the files ------------------------------------------------------------------------------


def _unpack(
    files: Iterator[PlainFile],
    contents: BackupContents,
    places: Mapping[str, Path],
    making: Path,
    on_progress: OnStage,
) -> None:
    missing = dict(contents.files)
    read = 0
    for file in files:
        if file.name not in missing:
            raise Damaged(f"The backup holds {file.name!r:.200} twice or unlisted.")
        size, digest = missing.pop(file.name)
        if file.size != size:
            raise Damaged(
                f"{file.name} has {file.size} bytes in the backup, but its manifest says {size}."
            )
        if file.name in places:
            _extract(file, places[file.name], digest)
            os.utime(making)  # it is in use: nothing removes it as left over
        read += size
        on_progress("read", read / max(contents.size, 1))
    if missing:
        raise Damaged(f"The backup ends without {len(missing)} of its files.")


def _extract(file: PlainFile, target: Path, digest: str) -> None:
    computed = hashlib.sha256()
    try:
        target.parent.mkdir(mode=0o700)
        target.touch(mode=0o600, exist_ok=False)
        with open(target, "wb") as written:
            for chunk in file.content:
                computed.update(chunk)
                written.write(chunk)
    except OSError as error:
        raise CannotWrite(
            f"{target} cannot be written ({error}); make room on the disk."
        ) from error
    if computed.hexdigest() != digest:
        raise Damaged(f"{file.name} was changed since the backup: its checksum differs.")


def _adopted(path: Path, figures: Figures, deadline: Deadline) -> Settings:
    """Prove that a database is that of a sound collection, and return the collection's settings."""
    try:
        settings = Settings.of(adopt(path, deadline.is_over))
        _check_as_request(settings)
        with closing(Store(path, read_only=True)) as store:
            problems = [*version_problems(store, settings)]
            actual = read_figures(store.connections.reader().conn)
        if actual != figures:
            problems.append(f"it has {actual}, but the manifest says {figures}.")
        if problems:
            raise Damaged(problems[0])
        sync_file(path)
    except CannotWrite:
        raise
    # Whatever a stranger's rows bring about, the reason lies in them.
    except Exception as error:
        deadline.check()
        reason = printable(f"{error}")
        raise Damaged(f"The backup's database cannot be read as a collection: {reason}") from error
    return settings


def _check_as_request(settings: Settings) -> None:
    """Check stored settings as those of a request to create a collection."""
    stored: dict[str, Any] = settings.stored()
    parse(CollectionSettings, {"dimension": settings.dimension}, strict=True)
    # Such a request names one of the two, and the other follows from it.
    del stored["encoder" if settings.encoder is None else "dimension"]
    parse(CollectionSettings, stored, strict=True)
    if settings.values is not None:
        parse_type(settings.values, field="values")


def _move(making: Path, collections: Path) -> None:
    """Move all collections and aliases of one folder into another, or none.

    Raises:
        CollectionExists: a name was taken meanwhile.
        CannotWrite: the disk does not take them.
    """
    try:
        (making / "collections").rename(collections)
    except OSError:  # there are collections already
        # By this name, whoever opens the library after a kill moves the rest.
        restored = making.with_name(making.name.replace("making", "restored", 1))
        making.rename(restored)
        sync_folder(restored.parent)
        try:
            _move_each(restored / "collections", collections)
        finally:
            shutil.rmtree(restored, ignore_errors=True)
    sync_folder(collections)
    sync_folder(collections.parent)


def _move_each(making: Path, collections: Path) -> None:
    moved: list[Path] = []
    # An alias after the collection that it leads to.
    for path in sorted(making.iterdir(), key=Path.is_symlink):
        target = collections / path.name
        try:
            if path.is_symlink():  # renamed, it would replace another one
                target.symlink_to(path.readlink())
            else:
                path.rename(target)
        except BaseException as error:
            is_taken = os.path.lexists(target)
            if isinstance(error, FileNotFoundError) and is_taken:
                continue  # whoever has opened the library meanwhile has moved it
            for done in reversed(moved):
                done.unlink() if done.is_symlink() else done.rename(making / done.name)
            if not isinstance(error, OSError):
                raise
            if not is_taken:
                raise CannotWrite(f"{target} cannot be written ({error}).") from error
            raise _taken(target.name) from None
        moved.append(target)
