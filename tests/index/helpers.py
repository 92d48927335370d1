"""What the tests of the core share: documents without an encoder, and brute force."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.special import logsumexp, softmax

from attend.collection.collection import Collection
from attend.collection.data import Data
from attend.core.types import Document
from attend.keys.files import Manifest, checksum
from attend.projection import Projection, given
from attend.store import CollectionStore, Entry, Hashes, KeyRow, selection
from attend.store.database import Store
from tests import warm


def split_heads(d_in: int, heads: int, *, gates: Any = None) -> Projection:
    """Return the identity cut into heads of d_in / heads dimensions each."""
    return given(np.eye(d_in), np.eye(d_in), heads=heads, gates=gates, kind="identity")


def no_encoder(name: str) -> Any:
    raise AssertionError(f"the encoder {name!r} was loaded, which nothing here needs")


def vector_data(folder: Path) -> Data:
    """A data folder whose collections never meet an encoder."""
    return Data(folder, load_encoder=no_encoder)


def entry(id: str, keys: Iterable[Sequence[float]] = ((1.0, 0.0),), **rest: Any) -> Entry:
    """A document with keys of its own and hashes that no other content has."""
    document = Document(id, vectors={}, **rest)
    rows = [KeyRow("vector", 0, 0, np.asarray(key, dtype=np.float32)) for key in keys]
    content = repr((document, [row.embedding.tolist() for row in rows])).encode()
    return Entry(document, Hashes(content, content), rows)


def several_keys(id: str, vectors: Sequence[Sequence[float]], **rest: Any) -> Document:
    """A document of several keys, each a field's own vector."""
    named = {f"v{at}": [float(x) for x in vector] for at, vector in enumerate(vectors)}
    return Document(id, vectors=named, **rest)


def fresh_store(path: Path, dimension: int = 2) -> Store:
    """A store as a new collection of vectors has it."""
    from attend.core.settings import Settings
    from attend.projection import identity

    store = Store(path, width=dimension)
    projection = identity(dimension)
    store.initialise(
        Settings(encoder=None, dimension=dimension).stored(),
        (projection.kind, projection.to_bytes(), projection.fingerprint),
    )
    return store


FIRST_WORDS = (
    "CREATE VIRTUAL TABLE lexical USING fts5("
    "text, content = '', tokenize = 'porter unicode61 remove_diacritics 2')",
    "CREATE TRIGGER index_text AFTER INSERT ON documents BEGIN "
    "INSERT INTO lexical (rowid, text) SELECT new.row, group_concat(value, char(10)) "
    "FROM json_each(new.fields); END",
    "CREATE TRIGGER remove_text AFTER DELETE ON documents BEGIN SELECT 1; END",
    "CREATE TRIGGER reindex_text AFTER UPDATE OF row, fields ON documents BEGIN SELECT 1; END",
)
"""The index of words of a database before the last migration, which split texts otherwise."""


def index_fields(store: Store, names: Iterable[str]) -> None:
    """Index fields at once, as filters that use them have it done in the background."""
    with store.connections.writing() as db:
        for name in names:
            assert selection.choose_field(db, name)
    finish_indexes(store)


def finish_indexes(store: Store) -> None:
    """Do what is left to be built or dropped."""
    more = True
    while more:
        with store.connections.writing() as db:
            more = selection.index_step(db)


def index_faults(store: Store) -> Mapping[str, int]:
    """Documents with wrong entries, by indexed field; empty where all are sound."""
    with store.connections.reading() as db:
        return selection.index_faults(db)


def drop_indexes(store: Store, names: Sequence[str]) -> None:
    """Drop the indexes of fields; filters build them again."""
    with store.connections.writing() as db:
        selection.drop_indexes(db, names)


def integrity(store: Store) -> list[str]:
    """Return SQLite's complaints about the file of a store."""
    with store.connections.reading() as db:
        lines = [str(row[0]) for row in db.execute("PRAGMA integrity_check")]
    return [] if lines == ["ok"] else lines


def embeddings_of(store: CollectionStore, row: int) -> np.ndarray:
    """A document's own keys (not those of examples), in the order of their ids: (keys, d)."""
    return store.own_keys(np.array([row], dtype=np.int64)).vectors


def brute_logits(
    query: Sequence[float],
    keys: Mapping[str, Sequence[Sequence[float]]],
    *,
    scorer: str = "dot",
    pool: str = "max",
    scale: float = 1.0,
) -> dict[str, float]:
    """The logit of every document by a plain loop in float64 over float32 keys."""
    q = np.asarray(query, dtype=np.float32).astype(np.float64)
    logits = {}
    for id, rows in keys.items():
        scores = [scale * _score(q, np.float64(np.float32(row)), scorer) for row in rows]
        logits[id] = float(max(scores) if pool == "max" else logsumexp(scores))
    return logits


def _score(q: np.ndarray, k: np.ndarray, scorer: str) -> float:
    if scorer == "laplace":
        return -float(np.abs(q - k).sum())
    product = float(sum(a * b for a, b in zip(q, k, strict=True)))
    if scorer == "dot":
        return product
    lengths = float(np.sqrt((q * q).sum()) * np.sqrt((k * k).sum()))
    return product / lengths if lengths else 0.0


def ranked(logits: Mapping[str, float], attend: int) -> list[str]:
    return sorted(logits, key=lambda id: -logits[id])[:attend]


def soft_weights(logits: Mapping[str, float], ids: Sequence[str], tau: float = 1.0) -> np.ndarray:
    return softmax(np.array([logits[id] for id in ids]) / tau) if ids else np.zeros(0)


def published(collection: Collection) -> Path:
    """The folder of the current generation of the plain layout."""
    layout = collection.folder / "keys" / "raw"
    return layout / (layout / "current").read_text().strip()


def sealed(path: Path, **changes: object) -> None:
    """Another program's manifest: whole, but of something else."""
    manifest = Manifest(**{**json.loads(path.read_text()), **changes})
    path.write_text(json.dumps(vars(manifest.sealed())))


def with_another_vector(generation: Path, position: int) -> None:
    """Change one number of a published key, so that only the database tells."""
    path, manifest = generation / "vectors.npy", generation / "manifest.json"
    vectors = np.load(path)
    vectors[position, 3] += 0.5
    np.save(path, vectors)
    written = json.loads(manifest.read_text())
    sealed(manifest, checksums=written["checksums"] | {path.name: checksum(path)})


def write_jsonl(path: Path, rows: Iterable[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def run_index(*arguments: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """`python -m index` as a user runs it."""
    return warm.run("-m", "index", *arguments, given=stdin)


def commands_of(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield the commands of a group, and of the groups in it, with their paths."""
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None, name
            yield (*path, name), command
            if isinstance(command, click.Group):
                yield from commands_of(command, *path, name)
