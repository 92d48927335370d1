"""The long operations of a library: how each is prepared and run, and all that a user can see.

Each runs in a process of its own (`tests.soak.faults`), in a folder that may fail under it.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sqlite_utils import Database

from attend import Collection, Data
from attend.cli import main
from attend.collection.verify import verify
from attend.engines.snapshots import Views
from attend.exchange.backup import restore_backup, save_backup
from attend.store.migrations import migrations
from attend.write.build import WINDOW
from attend.write.reindex import reindex
from tests.index.helpers import FIRST_WORDS
from tests.soak import tiny
from tests.soak.acts import marker
from tests.soak.load import WORDS

DOCUMENTS = 2 * WINDOW + 88
"""Three windows, the last one not full."""

USERS = 30

UNSEEN = {
    *("uuid", "change", "published", "settings_change", "foreign", "mapping", "column_types"),
    *("spare_of", "replaced", "promotion_looks", "projection", "recommend", "predict"),
}
"""Settings that nobody sees, or that follow from the rest."""


@dataclass(frozen=True)
class Place:
    """The folder of one run, and what is outside of it and never changed."""

    root: Path
    shared: Path

    @property
    def data(self) -> Path:
        """The library."""
        return self.root / "library"

    @property
    def backup(self) -> Path:
        """The file of a backup."""
        return self.root / "backup.tar"

    def encoder(self, name: str) -> str:
        return str(self.shared / name)

    @contextmanager
    def library(self) -> Iterator[Data]:
        with closing(Data(self.data)) as data:
            yield data

    @contextmanager
    def books(self) -> Iterator[Collection]:
        with self.library() as data:
            yield data.collection("books")


Step = Callable[[Place], object]


@dataclass(frozen=True)
class Operation:
    """An operation.

    Attributes:
        prepare: makes what is there before.
        run: the operation itself; the same again goes on with it.
        between: what else may be left of it, each made from what is there before; nothing where
            it is all or none.
        says_done: what an error says where it is run again and was done already.
        repeats: false where the same once more would do something else.
    """

    name: str
    prepare: Step
    run: Step
    between: Sequence[Step] = ()
    says_done: str = ""
    repeats: bool = True


# -- what a user can see --------------------------------------------------------------------


def look(place: Place) -> dict[str, Any]:
    """Return all that a user can see of a library, and of a backup beside it."""
    with place.library() as data:
        state: dict[str, Any] = {"aliases": data.aliases()}
        for name in data.names():
            # A spare collection is on its way to be the collection, or was it.
            if not name.endswith("-spare"):
                state[name] = seen(data.collection(name))
    if place.backup.exists():
        other = Place(place.root / "restored", place.shared)
        with place.backup.open("rb") as file, other.library() as data:
            restore_backup(file, data)
        state["backup"] = look(other)
    return state


def seen(collection: Collection) -> dict[str, Any]:
    """Return what a user can see of a collection, and a digest of what is long."""
    store, settings = collection.store, collection.store.settings()
    documents = collection.page(limit=10_000).documents
    versions = [version for version in collection.projections() if version.active]
    with store.all_keys(examples=False) as (_, tables):
        vectors = [np.round(table.vectors, 5) for table in tables]
    return {
        "documents": len(documents),
        "keys": store.state().last_key,  # ever made: what was done is not done twice
        "settings": {
            key: value for key, value in settings.items() if key.split("/")[0] not in UNSEEN
        },
        "contents": _digest([document[1:] for document in documents]),
        "vectors": _digest([table.tolist() for table in vectors]),
        "feedback": _digest([_plain(one) for one in store.latest_examples(10_000)]),
        "interactions": _digest(sorted(map(repr, store.interaction_page((0, 0), 10_000)[0]))),
        "versions": [
            (version.role, version.kind, version.note, bool(version.report.get("promoted")))
            for version in versions
        ],
        "claims": [
            version.version
            for version in collection.projections()
            if version.report.get("promoted") and not version.active and version.parent is None
        ],
        "answers": _answers(collection, [document.id for document in documents[:3]]),
    }


def _answers(collection: Collection, ids: Sequence[str]) -> list[Any]:
    """Return the answers of some searches, as numbers that float32 and its order do not move."""
    if not ids:
        return []
    questions: list[Any] = [{"id": id} for id in ids]
    if collection.settings.encoder is not None:
        questions += [" ".join(WORDS[at : at + 3]) for at in range(0, 9, 3)]
    answers = [
        [(hit.score, hit.value) for hit in collection.search(question, k=10, **options).hits]
        for question in questions
        for options in ({}, {"filter": {"@value": {"gte": 3}}}, {"lexical": 1.0})
    ]
    answers.append(
        [(hit.score, hit.value) for hit in collection.recommend(history=list(ids), k=10).hits]
    )
    return [[(round(score, 3), value) for score, value in answer] for answer in answers]


def _plain(example: Any) -> list[str]:
    names = [name for name in vars(example) if name not in ("id", "created")]
    return [repr(getattr(example, name)) for name in names]


def _digest(content: Any) -> str:
    return hashlib.sha256(repr(content).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def problems(place: Place) -> list[str]:
    """Return what `verify` finds in all collections."""
    with place.library() as data:
        return [
            f"{name}: {problem}"
            for name in data.names()
            for problem in verify(data.collection(name)).problems
        ]


# -- what they are made of ------------------------------------------------------------------


def texts(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, 6)) for _ in range(count)]


def documents(count: int, seed: int = 0) -> list[dict[str, Any]]:
    return [
        {"id": f"d{at}", "text": text, "value": at % 7, "payload": {"n": at}}
        for at, text in enumerate(texts(count, seed))
    ]


def write_shared(folder: Path) -> None:
    """Make the models and the sources."""
    folder.mkdir(parents=True)
    tiny.save(folder / "encoder")
    tiny.save(folder / "narrow", tiny.VECTORS[:, :16].copy())
    changed = [
        row | {"text": row["text"][::-1], "value": 9} if at % 5 == 0 else row
        for at, row in enumerate(documents(DOCUMENTS))
    ][: DOCUMENTS - 20]
    for name, rows in (("rows", documents(DOCUMENTS)), ("changed", changed)):
        for count in (WINDOW, 2 * WINDOW, len(rows)):
            content = "".join(
                json.dumps({key: row[key] for key in ("id", "text", "value")}) + "\n"
                for row in rows[:count]
            )
            (folder / f"{name}-{count}.jsonl").write_text(content)
    content = "".join(
        json.dumps({"query": text, "id": f"d{at}"}) + "\n"
        for at, text in enumerate(texts(12, seed=5))
    )
    (folder / "feedback.jsonl").write_text(content)


def attend(*arguments: str) -> Step:
    """Return a step that is a command; {data}, {shared} and {backup} stand for paths."""

    def step(place: Place) -> None:
        names = {"data": place.data, "shared": place.shared, "backup": place.backup}
        written = [argument.format_map(names) for argument in arguments]
        main([*written, "--data", str(place.data)], prog_name="attend", standalone_mode=True)

    return step


def _build(source: str, *more: str) -> Step:
    roles = ("--id", "id", "--text", "text", "--value", "value", "--collection", "books")
    encoder = ("--encoder", "{shared}/encoder")
    return attend("build", f"{{shared}}/{source}.jsonl", *roles, *encoder, *more)


def unpublished(step: Step) -> Step:
    """Return a step that ends before it publishes, where recommendations get another mean."""

    def stopped(place: Place) -> None:
        # In a process of its own, which ends here.
        Views.publish = lambda *_: None  # type: ignore[method-assign]
        step(place)

    return stopped


def nothing(place: Place) -> None:
    """Before there is a library."""


def created(place: Place) -> None:
    with place.library() as data:
        data.create("books", encoder=place.encoder("encoder"))


def shelf(place: Place) -> None:
    """A library in use: books with feedback, an index, and writes since; films; an alias."""
    with place.library() as data:
        books = data.create("books", encoder=place.encoder("encoder"))
        books.upsert(documents(DOCUMENTS))
        questions = enumerate(texts(12, seed=1))
        books.teach([{"query": text, "id": f"d{at}"} for at, text in questions])
        books.add_interactions(
            {"user": f"u{user}", "id": f"d{(user * 7 + at) % 40}", "value": 1 + at % 5}
            for user in range(USERS)
            for at in range(4)
        )
        books.publish()
        books.upsert(documents(DOCUMENTS + 20)[-30:])
        films = data.create("films", encoder=place.encoder("encoder"))
        films.upsert(documents(40, seed=3))
        films.publish()
        data.set_alias("live", "books")


def reindexed(place: Place) -> None:
    """A library whose encoder was changed, and which was written to since."""
    shelf(place)
    with place.library() as data:
        reindex(data, "books", place.encoder("narrow"))
    with place.books() as books:
        books.upsert(documents(DOCUMENTS, seed=8)[:300])
        books.delete(["d500", "d501"])


def backed_up(place: Place) -> None:
    """A library with a backup of before its last writes."""
    shelf(place)
    with place.library() as data:
        save_backup(data, place.backup)
        data.collection("books").delete(["d7"])


def saved(place: Place) -> None:
    """A backup, and a library with none of its collections."""
    shelf(place)
    with place.library() as data:
        save_backup(data, place.root / "saved.tar")
        for alias in data.aliases():
            data.drop_alias(alias)
        for name in data.names():
            data.drop(name)
        # Where there is another collection, those of the backup move in one by one.
        data.create("poems", dimension=2).upsert([{"id": "ode", "vector": [1.0, 0.5]}])


def older(place: Place) -> None:
    """A library whose words are indexed as before there were words of all scripts."""
    with place.library() as data:
        books = data.create("books", encoder=place.encoder("encoder"))
        books.upsert(documents(DOCUMENTS))
        books.publish()
        path = books.store.path
    before = path.with_name("before.db")
    with closing(sqlite3.connect(before, isolation_level=None)) as db:
        migrations.apply(Database(db, execute_plugins=False), stop_before=LAST)
        for statement in FIRST_WORDS:
            db.execute(statement)
        db.execute("ATTACH ? AS new", [str(path)])
        for table in ("settings", "projections", "documents", "keys", "sqlite_sequence"):
            columns = ", ".join(row[1] for row in db.execute(f"PRAGMA main.table_info({table})"))
            db.execute(f"DELETE FROM main.{table}")
            db.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM new.{table}")
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    before.rename(path)


LAST = "m006_words_of_all_scripts"


def opened(place: Place) -> None:
    with place.books() as books:
        assert books.search(" ".join(WORDS[:3])).hits


def upsert(place: Place) -> None:
    """One batch, that changes, adds and leaves: all of it, or none."""
    with place.books() as books:
        books.upsert(documents(DOCUMENTS + 200, seed=2)[300:])


def delete(place: Place) -> None:
    with place.books() as books:
        books.delete([f"d{at}" for at in range(0, DOCUMENTS, 2)])


def publish(place: Place) -> None:
    with place.books() as books:
        books.publish()


def projected(place: Place) -> None:
    """A library with a version that does not answer yet."""
    shelf(place)
    with place.books() as books:
        books.add_projection(books.fit_projection("pca", 12))


def activate(place: Place) -> None:
    with place.books() as books:
        books.activate(2)


def exchange(place: Place) -> None:
    with place.library() as data:
        data.exchange("books", "films")


def interact(place: Place) -> None:
    with place.books() as books:
        books.add_interactions(
            [{"user": f"u{at}", "id": f"d{at}", "value": 5} for at in range(60)],
            delete_stored=True,
        )


# -- trainings ------------------------------------------------------------------------------


def turned(place: Place) -> None:
    """A collection of vectors, whose queries are documents turned: a training finds the turn."""
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((120, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    turn, _ = np.linalg.qr(np.eye(8) + 0.5 * rng.standard_normal((8, 8)))
    with place.library() as data:
        books = data.create("books", dimension=8, normalize=True)
        books.upsert(
            {"id": f"d{at}", "vector": vector.tolist(), "value": at % 7}
            for at, vector in enumerate(vectors)
        )
        queries = vectors[:80] @ turn.T + 0.03 * rng.standard_normal((80, 8))
        books.teach({"query": query.tolist(), "id": f"d{at}"} for at, query in enumerate(queries))
        # Users who keep to a group of documents, which their vectors do not tell.
        books.add_interactions(
            {"user": f"u{user}", "id": f"d{at}"}
            for user in range(160)
            for at in range(60)
            if at % 4 == user % 4 and rng.random() < 0.5
        )


def _train(objective: Any) -> Step:
    def step(place: Place) -> None:
        stages: list[str] = []
        mark = marker(place.root)

        def progress(stage: str, done: float) -> None:
            part = f"{stage} {done:.0%}"[:-2]  # tenths are stages of their own
            if part not in stages:
                stages.append(part)
                mark(stage)

        with place.books() as books:
            report = books.train(objective=objective, progress=progress)
            assert report["promoted"], report["reason"]

    return step


def operations() -> Iterable[Operation]:
    """Return the table."""
    rows, changed = (f"{name}-{{}}" for name in ("rows", "changed"))
    windows = (WINDOW, 2 * WINDOW)
    left = DOCUMENTS - 20
    configure = attend("configure", "--collection", "books", "--recall", "0.9")
    return (
        Operation(
            "build",
            nothing,
            _build(rows.format(DOCUMENTS)),
            [
                created,
                *(unpublished(_build(rows.format(count))) for count in (*windows, DOCUMENTS)),
            ],
        ),
        Operation(
            "build --sync",
            shelf,
            _build(changed.format(left), "--sync"),
            [
                *(unpublished(_build(changed.format(count))) for count in (*windows, left)),
                unpublished(_build(changed.format(left), "--sync")),
            ],
        ),
        Operation("create", nothing, created),
        Operation("upsert", shelf, upsert),
        Operation("delete", shelf, delete),
        Operation("publish", shelf, publish),
        Operation(
            "teach",
            shelf,
            attend("teach", "--examples", "{shared}/feedback.jsonl", "--collection", "books"),
            repeats=False,
        ),
        Operation("interactions", shelf, interact),
        Operation("train ranking", turned, _train("ranking"), repeats=False),
        Operation("train recommend", turned, _train("interactions"), repeats=False),
        Operation("activate", projected, activate),
        Operation(
            "reindex",
            shelf,
            attend("reindex", "--collection", "books", "--encoder", "{shared}/narrow"),
            says_done="has the encoder",
        ),
        Operation(
            "reindex --rollback",
            reindexed,
            attend("reindex", "--collection", "books", "--rollback"),
            repeats=False,
        ),
        Operation("export", backed_up, attend("export", "--snapshot", "{backup}", "--force")),
        Operation(
            "import",
            saved,
            attend("import", "--snapshot", "{data}/../saved.tar"),
            says_done="exists already",
        ),
        Operation(
            "drop", shelf, attend("drop", "films", "--yes"), says_done="There is no collection"
        ),
        Operation("alias", shelf, attend("alias", "live", "films")),
        Operation("exchange", shelf, exchange, repeats=False),
        Operation("migrate", older, opened),
        Operation("configure", shelf, configure, [unpublished(configure)]),
    )
