"""The collections of a library: one small table of named texts.

```
collection/NAME         uuid, settings, the active version and those before it, key tables
claim/UUID              who is making a table for it, and until when nobody else is to
alias/NAME              the collection that it stands for
version/UUID/N          a projection: kind, tuning, note, …
weights/UUID/N/PART     its matrices, in parts that fit into a field
```
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any

from attend.api.base import Consistency
from attend.core.errors import LimitExceeded, UnknownAlias, UnknownProjection
from attend.engines.engine import MAX_ALIASES, name_taken
from attend_milvus import schema
from attend_milvus.client import Client
from attend_milvus.rows import LOOKED_AGAIN, Table

PART_BYTES = 48_000
"""Of matrices in one row: 64,000 letters of base64."""

KNOWN_SECONDS = 1.0
"""Age up to which a collection's record is not read again."""


@dataclass(frozen=True)
class Known:
    """The record of one collection, as every process sees it.

    Attributes:
        active: the versions that were activated, the one that answers last.
        layouts: those that writes must enter besides the raw one: by name the version that makes
            their keys, and True once they are complete.
        shards: of each table.
        graphs: by version what was measured of the HNSW table of its keys, which is complete
            (`attend_milvus.graphs`).
    """

    name: str
    uuid: str
    settings: Mapping[str, Any]
    active: tuple[int, ...]
    layouts: Mapping[str, tuple[int, bool]]
    shards: int = 1
    graphs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def version(self) -> int:
        return self.active[-1]

    def is_complete(self, layout: str) -> bool:
        """Return whether the keys of a layout can be searched."""
        return layout == schema.RAW or self.layouts.get(layout, (0, False))[1]

    def body(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, body: str) -> Known:
        value = json.loads(body)
        layouts = {name: (item[0], item[1]) for name, item in value.pop("layouts").items()}
        return cls(**{**value, "active": tuple(value["active"]), "layouts": layouts})


class Registry:
    """Named texts of one library, shared by all processes; any thread may use it.

    It is also the `AliasNames` of the library.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._rows = Table(client, f"{client.address.library}_meta", "name")
        self._known: dict[str, tuple[float, Known]] = {}
        self._is_made = False
        self._making = threading.Lock()
        self.changing = threading.Lock()

    # -- collections ------------------------------------------------------------------------

    def names(self) -> list[str]:
        return sorted(name.removeprefix("collection/") for name in self._like("collection/"))

    def known(self, name: str, *, fresh: bool = False) -> Known | None:
        """Return a collection's record, at most a second old or fresh; None for an unknown name."""
        stored = self._known.get(name)
        if stored is not None and not fresh and time.monotonic() - stored[0] < KNOWN_SECONDS:
            return stored[1]
        body = None if fresh else self._one(f"collection/{name}")
        # Another process may have just made it, and a known one may be replaced at this moment:
        # only a strong read says that it is gone.
        for pause in (0.0, *LOOKED_AGAIN) if stored else (0.0,):
            if body is None:
                time.sleep(pause)
                body = self._one(f"collection/{name}", "strong")
        if body is None:
            self._known.pop(name, None)
            return None
        record = Known.of(body)
        self._known[name] = time.monotonic(), record
        return record

    def put_record(self, record: Known) -> None:
        self._put({f"collection/{record.name}": record.body()})
        self._known[record.name] = time.monotonic(), record

    def forget(self, record: Known) -> None:
        """Remove a collection with its versions; its tables are another's to drop."""
        self._known.pop(record.name, None)
        rest = [*self._like(f"version/{record.uuid}/"), *self._like(f"weights/{record.uuid}/")]
        self._rows.delete([f"collection/{record.name}", f"claim/{record.uuid}", *rest])

    # -- versions ---------------------------------------------------------------------------

    def versions(self, uuid: str) -> dict[int, dict[str, Any]]:
        """Return the record of each version, by number."""
        bodies = self._like(f"version/{uuid}/")
        numbered = {int(name.rsplit("/", 1)[1]): json.loads(body) for name, body in bodies.items()}
        return dict(sorted(numbered.items()))

    def add_version(
        self, uuid: str, number: int, details: Mapping[str, Any], weights: bytes
    ) -> None:
        """Store the matrices first: a version that is there is whole."""
        starts = range(0, max(len(weights), 1), PART_BYTES)
        self._put(
            {
                f"weights/{uuid}/{number}/{place:04d}": base64.b64encode(
                    weights[start : start + PART_BYTES]
                ).decode()
                for place, start in enumerate(starts)
            }
        )
        self._put({f"version/{uuid}/{number}": json.dumps({**details, "parts": len(starts)})})

    def put_report(self, uuid: str, number: int, report: Mapping[str, Any]) -> None:
        """Replace a version's report."""
        details, _ = self.version(uuid, number)
        self._put({f"version/{uuid}/{number}": json.dumps({**details, "report": dict(report)})})

    def version(self, uuid: str, number: int) -> tuple[dict[str, Any], bytes]:
        """Return the record of a version, and its matrices.

        Raises:
            UnknownProjection: an unknown number.
        """
        name = f"version/{uuid}/{number}"
        body = self._one(name) or self._one(name, "strong")
        if body is None:
            raise UnknownProjection(
                f"There is no projection {number}; 'attend projections' lists those there are.",
                field="projection",
            )
        parts = self._like(f"weights/{uuid}/{number}/", "strong")
        return json.loads(body), b"".join(base64.b64decode(parts[name]) for name in sorted(parts))

    # -- aliases ----------------------------------------------------------------------------

    def all(self) -> dict[str, str]:
        """Return the collection of each alias, in alphabetical order."""
        bodies = self._like("alias/")
        return {name.removeprefix("alias/"): bodies[name] for name in sorted(bodies)}

    def target(self, name: str) -> str | None:
        """Return the collection that an alias leads to, there or not; None for no alias."""
        stored = self._known.get(name)
        if stored is not None and time.monotonic() - stored[0] < KNOWN_SECONDS:
            return None  # a collection
        return self._one(f"alias/{name}")

    def put(self, name: str, collection: str) -> bool:
        """Let an alias lead to a collection, and return whether the alias is new."""
        before = self.all()
        if name not in before and len(before) >= MAX_ALIASES:
            raise LimitExceeded(
                f"There are {len(before)} aliases, and at most {MAX_ALIASES} are kept; delete one."
            )
        if self.known(name) is not None:
            raise name_taken(name)
        self._put({f"alias/{name}": collection})
        return name not in before

    def remove(self, name: str) -> None:
        """Delete an alias; its collection stays. Raise UnknownAlias for an unknown one."""
        if self._one(f"alias/{name}", "strong") is None:
            raise UnknownAlias(
                f"There is no alias {name!r}. List the aliases to see their names.", field="alias"
            )
        self._rows.delete([f"alias/{name}"])

    # -- leases -----------------------------------------------------------------------------

    def lease(self, uuid: str) -> tuple[str, float]:
        """Return the holder of a collection's lease ("": nobody), and its end by the clock."""
        body = self._one(f"claim/{uuid}", "strong")
        holder, until = json.loads(body) if body else ("", 0.0)
        return holder, until

    def put_lease(self, uuid: str, holder: str, until: float) -> None:
        self._put({f"claim/{uuid}": json.dumps([holder, until])})

    def release(self, uuid: str) -> None:
        self._rows.delete([f"claim/{uuid}"])

    # -- the table --------------------------------------------------------------------------

    def _like(self, prefix: str, consistency: Consistency | None = None) -> dict[str, str]:
        return self._read(f"name like {json.dumps(prefix + '%')}", consistency)

    def _one(self, name: str, consistency: Consistency | None = None) -> str | None:
        return self._read(f"name in [{json.dumps(name)}]", consistency).get(name)

    def _read(self, filter: str, consistency: Consistency | None) -> dict[str, str]:
        self._make()
        rows = self._rows.query(filter, ["name", "body"], None, consistency)
        return {row["name"]: row["body"] for row in rows}

    def _put(self, bodies: Mapping[str, str]) -> None:
        self._make()
        self._rows.upsert(
            [
                {"name": name, "body": body, "nothing": schema.NOTHING}
                for name, body in bodies.items()
            ]
        )

    def _make(self) -> None:
        if not self._is_made:
            with self._making:
                schema.make_table(self._client, self._rows.name, schema.META)
                self._is_made = True


LEASE_SECONDS = 120.0
"""After which the work of a process that says nothing of it is anybody's; by their clocks."""

SETTLED_SECONDS = 0.5
"""Two that claim at the same moment have both written by then, and read who was last."""


class Lease:
    """A claim to a piece of work, held from `take` until the `with` is left."""

    def __init__(self, registry: Registry, name: str) -> None:
        self._registry = registry
        self._name = name
        self._holder = secrets.token_hex(8)
        self._renewed = 0.0

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._renewed:
            self._registry.release(self._name)

    def take(self) -> bool:
        """Try to take the lease. Return whether this holder has it."""
        holder, until = self._registry.lease(self._name)
        if holder not in ("", self._holder) and until > time.time():
            return False
        self._renew()
        time.sleep(SETTLED_SECONDS)
        mine = self._registry.lease(self._name)[0] == self._holder
        self._renewed = self._renewed if mine else 0.0
        return mine

    def keep(self) -> None:
        """Renew the lease when it is time; its holder calls this again and again."""
        if time.monotonic() - self._renewed > LEASE_SECONDS / 4:
            self._renew()

    def _renew(self) -> None:
        self._registry.put_lease(self._name, self._holder, time.time() + LEASE_SECONDS)
        self._renewed = time.monotonic()
