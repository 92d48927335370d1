"""API keys in `DIR/api-keys.json`: made, listed, removed and recognised.

A key reads `attend_ID_SECRET`. The secret is 256 random bits, so that one fast hash is enough:
slow ones protect passwords, which can be guessed, and would let anyone keep a processor busy by
sending wrong keys. Of the key only its id, a salt and the salted hash are stored.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from filelock import FileLock

from attend.core.errors import Damaged, NotFound
from attend.keys.files import sync_folder

Scope = Literal["read", "write", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
"""Each may do what those before it may."""

FILE = "api-keys.json"
HEADER, QDRANT_HEADER = "X-Api-Key", "Api-Key"
SECRET_BYTES = 32
SHAPE = re.compile(r"attend_([0-9a-f]{12})_([\w-]{43})", re.ASCII)
LOCK_SECONDS = 10.0

_State = tuple[int, int, int, int] | None
"""The identity of one version of the file; None where the file is missing."""


@dataclass(frozen=True)
class ApiKey:
    """A key as stored.

    Attributes:
        collections: the names that it opens; None for all.
        created, expires: times in UTC, as ISO 8601 has them; None for never.
        salt, hash: in hex; the hash is SHA-256 of salt and secret.
    """

    id: str
    name: str
    scope: Scope
    collections: tuple[str, ...] | None
    created: str
    expires: str | None
    salt: str
    hash: str

    def opens(self, collection: str) -> bool:
        return self.collections is None or collection in self.collections

    def may(self, need: Scope) -> bool:
        return SCOPES.index(self.scope) >= SCOPES.index(need)

    def is_over(self) -> bool:
        return self.expires is not None and datetime.fromisoformat(self.expires) <= datetime.now(
            UTC
        )


class KeyFile:
    """The keys of a data folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def all(self) -> list[ApiKey]:
        """Return every key, the oldest first.

        Raises:
            Damaged: the file is not one of keys.
        """
        try:
            stored = json.loads(self.path.read_bytes())
            return [_key(key) for key in stored["keys"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Damaged(
                f"{self.path} cannot be read as API keys ({error or type(error).__name__}), so no "
                f"request is accepted. Repair it, or move it away and make new keys."
            ) from error

    def add(
        self,
        name: str = "",
        scope: Scope = "read",
        collections: Sequence[str] = (),
        expires: datetime | None = None,
    ) -> tuple[ApiKey, str]:
        """Make a key and store its hash; without `collections` it opens all.

        Returns: the key, and the text that the client sends, which is not stored.
        """
        id, secret = secrets.token_hex(6), secrets.token_urlsafe(SECRET_BYTES)
        salt = secrets.token_hex(16)
        opened = tuple(dict.fromkeys(collections)) or None
        until = None if expires is None else _stamp(expires)
        created = _stamp(datetime.now(UTC))
        key = ApiKey(id, name, scope, opened, created, until, salt, _hash(salt, secret))
        with self._locked():
            self._publish([*self.all(), key])
        return key, f"attend_{id}_{secret}"

    def remove(self, id: str) -> ApiKey:
        """Remove a key. Raises NotFound where no key has the id."""
        with self._locked():
            keys = {key.id: key for key in self.all()}
            removed = keys.pop(id, None)
            if removed is None:
                raise NotFound(
                    f"There is no key with the id {id!r}; 'attend keys list' shows them."
                )
            self._publish(list(keys.values()))
        return removed

    def _locked(self) -> FileLock:
        return FileLock(f"{self.path}.lock", timeout=LOCK_SECONDS, mode=0o600)

    def _publish(self, keys: Sequence[ApiKey]) -> None:
        """Replace the file whole, readable by its owner alone."""
        fresh = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump({"keys": list(map(asdict, keys))}, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        sync_folder(self.path.parent)  # a removed key does not come back with a power cut


class KeyRing:
    """The keys as a running server knows them: a change of the file counts at once.

    A server that has asked for keys goes on asking, even when the last one is removed: it is
    not opened to everyone by an exchange of keys.
    """

    def __init__(self, folder: Path, *, always: bool = False) -> None:
        """`always` asks for a key even if none exists."""
        self._file = KeyFile(folder)
        self._asks = always
        self._seen: tuple[_State, Mapping[str, ApiKey]] = (None, {})

    def asks(self) -> bool:
        """Return whether requests need a key. Raises Damaged."""
        self._asks = bool(self._keys()) or self._asks
        return self._asks

    def owner(self, text: str) -> ApiKey | None:
        """Return the key of a secret, unless it is unknown or expired. Raises Damaged."""
        shaped = SHAPE.fullmatch(text)
        id, secret = shaped.groups() if shaped else ("", text)
        key = self._keys().get(id)
        # Where no key has the id, it takes as long.
        salt, hash = (key.salt, key.hash) if key is not None else ("00" * 16, "00" * 32)
        is_right = hmac.compare_digest(_hash(salt, secret), hash)
        return key if is_right and key is not None and not key.is_over() else None

    def _keys(self) -> Mapping[str, ApiKey]:
        try:
            stat = self._file.path.stat()
            state: _State = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        except FileNotFoundError:
            state = None
        seen, keys = self._seen
        if seen != state:
            # Read after the state: a change between the two is read again next time.
            keys = {key.id: key for key in self._file.all()}
            self._seen = state, keys
        return keys


def _key(stored: Mapping[str, Any]) -> ApiKey:
    key = ApiKey(**stored)
    if key.scope not in SCOPES or not re.fullmatch("[0-9a-f]{64}", key.hash):
        raise ValueError(f"the key {key.id!r} has a wrong scope or hash")
    key.is_over()  # refuses a wrong time
    return ApiKey(**{**stored, "collections": key.collections and tuple(key.collections)})


def _hash(salt: str, secret: str) -> str:
    return hashlib.sha256(f"{salt}{secret}".encode("utf-8", "surrogatepass")).hexdigest()


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")
