"""Which column of a table is the query, the document, the label: as told, else guessed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from attend.errors import SourceError
from attend.source import LOOKAHEAD_ROWS, Source, sample
from attend.source.rows import field_names, listed, look_for

QUERY_NAMES = (
    *("query", "query_text", "question", "question_text", "search", "search_query"),
    *("search_term", "term", "q", "text", "utterance", "sentence", "request"),
)
VECTOR_NAMES = ("query_vector", "query_embedding", "vector", "embedding", *QUERY_NAMES)
DOCUMENT_NAMES = (
    *("document", "document_id", "doc_id", "docid", "doc", "corpus_id", "passage_id", "pid"),
    *("item", "item_id", "product_id", "article_id", "target", "_id", "id", "url"),
)
LABEL_NAMES = (
    *("label", "weight", "relevance", "relevant", "rel", "grade", "score", "judgement"),
    *("judgment", "rating", "gain"),
)
POSITION_NAMES = ("position", "rank", "pos", "result_position")
CLICKED_NAMES = ("clicked", "click", "is_clicked", "is_click")
QUERY_ID_NAMES = ("query_id", "qid", "question_id")

NAMES = {
    "query": QUERY_NAMES,
    "document": DOCUMENT_NAMES,
    "label": LABEL_NAMES,
    "position": POSITION_NAMES,
    "clicked": CLICKED_NAMES,
}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table of examples; None where there is none of a kind.

    `guessed` says which of these nobody asked for.
    """

    query: str
    document: str
    label: str | None = None
    position: str | None = None
    clicked: str | None = None
    query_id: str | None = None
    guessed: tuple[str, ...] = ()


def guess_columns(
    source: Source, *, clicks: bool = False, vectors: bool = False, **given: str | None
) -> Columns:
    """Keep the columns that are given and find the rest by their names, whatever their case.

    Args:
        clicks: the table is a click log, which needs a position and a click and has no label.
        vectors: the collection has no encoder: a query's vector comes before its text.
        given: query, document, label, position, clicked: names of columns.

    Raises:
        SourceError: a column that is given or needed is not there; or a table that seems to be
            a click log, whose every row would count as relevant.
    """
    wanted = {kind: name for kind, name in given.items() if name is not None}
    present = _present(source, wanted.values())
    found = wanted | _found(present, clicks, vectors, wanted)
    needed = ["query", "document", *(["position", "clicked"] if clicks else [])]
    for kind in needed:
        if kind not in found:
            raise _missing(source, kind, present)
    if not clicks and "label" not in found and (column := named(present, CLICKED_NAMES)):
        raise SourceError(
            f"{source.name} has a column {column!r} and no label: it seems to be a click log. Give "
            f"it with --clicks, or name the label with --label-column."
        )
    guessed = tuple(kind for kind in found if kind in NAMES and kind not in wanted)
    return Columns(**found, guessed=guessed)


def _found(
    present: Sequence[str], clicks: bool, vectors: bool, wanted: Mapping[str, str]
) -> dict[str, str]:
    """The columns nobody named, each taken once."""
    names = NAMES | {"query": VECTOR_NAMES if vectors else QUERY_NAMES}
    names = {**names, "query_id": QUERY_ID_NAMES}
    del names["label" if clicks else "clicked"]
    found: dict[str, str] = {}
    for kind, known in names.items():
        free = [name for name in present if name not in {*wanted.values(), *found.values()}]
        if kind not in wanted and (column := named(free, known)):
            found[kind] = column
    return found


def named(present: Iterable[str], names: Sequence[str]) -> str | None:
    """The column that goes by the most telling of the names.

    >>> named(["Corpus-ID", "id"], DOCUMENT_NAMES)
    'Corpus-ID'
    """
    by_name = {plain(column): column for column in present}
    return next((by_name[name] for name in names if name in by_name), None)


def plain(column: str) -> str:
    """A name as data frames, spreadsheets and BEIR write it, in one spelling."""
    return column.strip().lower().replace("-", "_").replace(" ", "_")


def _present(source: Source, wanted: Iterable[str]) -> Sequence[str]:
    present = field_names(sample(source))
    missing = [name for name in wanted if name not in present]
    if missing:
        # Only now, since it reads on: JSON rows may leave out what is null in them.
        seen = look_for(missing, islice(source.rows(), LOOKAHEAD_ROWS))
        for name in missing:
            if name not in seen.names:
                raise SourceError(
                    f"{source.name} has no column {name!r} in its first {seen.rows} rows. They "
                    f"have {listed(seen.names, limit=40)}."
                )
        return tuple(dict.fromkeys([*present, *seen.names]))
    return present


def _missing(source: Source, kind: str, present: Sequence[str]) -> SourceError:
    return SourceError(
        f"No column of {source.name} looks like the {kind}. Choose with --{kind}-column among "
        f"{listed(present, limit=40)}."
    )


def describe_columns(columns: Columns) -> str:
    """The choice in one line, and in a second one what was guessed and how to choose.

    >>> print(describe_columns(Columns("q", "id")))
    query: q · document: id · label: none, so that each row counts as 1
    """
    parts = {kind: getattr(columns, kind) for kind in NAMES}
    if columns.clicked is None and columns.label is None:
        parts["label"] = "none, so that each row counts as 1"
    line = " · ".join(f"{kind}: {name}" for kind, name in parts.items() if name)
    if not columns.guessed:
        return line
    options = "/".join(f"--{kind}-column" for kind in columns.guessed)
    return f"{line}\nguessed: {', '.join(columns.guessed)} (say {options} to choose)"
