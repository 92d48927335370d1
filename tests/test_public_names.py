"""The public Python API: every name has a docstring with an example that runs, and types."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import attend
from tests import keywords

CLASSES = (attend.Answer, attend.Collection, attend.Data, attend.Document, attend.Hit)


def public() -> Iterator[tuple[str, Any]]:
    """Yield the names of the package, and those of its classes."""
    for name in attend.__all__:
        item = getattr(attend, name)
        if callable(item):
            yield name, item
    for kind in CLASSES:
        for name, member in inspect.getmembers(kind):
            if name.startswith("_") or not (callable(member) or isinstance(member, property)):
                continue
            yield f"{kind.__name__}.{name}", member


PUBLIC = dict(public())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What the examples may use: a library with a small collection of books."""
    library = attend.open(tmp_path)
    books = library.create("books", dimension=2)
    books.upsert(
        [
            {"id": "whale", "vector": [1, 0], "value": {"stars": 4.0}, "payload": {"year": 1851}},
            {"id": "emma", "vector": [0, 1], "value": {"stars": 3.0}, "payload": {"year": 1815}},
            {
                "id": "ship",
                "vector": [0.8, 0.6],
                "value": {"stars": 5.0},
                "payload": {"year": 1900},
            },
        ]
    )
    names = {name: getattr(attend, name) for name in attend.__all__}
    yield {**names, "attend": attend, "library": library, "books": books}
    library.close()


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example_that_runs(name: str, world: dict[str, Any]) -> None:
    docstring = inspect.getdoc(PUBLIC[name]) or ""
    example = doctest.DocTestParser().get_doctest(docstring, world, name, None, None)
    assert example.examples, f"{name} has no example"
    report: list[str] = []
    failed = (
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=report.append).failed
    )
    assert failed == 0, "".join(report)


def test_keywords_are_the_fields_of_the_models() -> None:
    assert keywords.FILE.read_text() == keywords.stub(), "run `python -m tests.keywords`"


@pytest.mark.parametrize(
    ("method", "keyword"),
    [
        (attend.Collection.search, "k"),
        (attend.Collection.recommend, "target"),
        (attend.Collection.train, "objective"),
        (attend.Data.create, "dimension"),
        (attend.Data.search, "mode"),
    ],
)
def test_signatures_name_the_keywords(method: Callable[..., Any], keyword: str) -> None:
    parameter = inspect.signature(method).parameters[keyword]
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY


def test_answers_are_one_line_and_escaped_tables(world: dict[str, Any]) -> None:
    books = world["books"]
    name = "<script>alert(1)</script>"
    books.upsert([{"id": name, "vector": [1, 0.1], "value": {"stars": 1.0}}])
    answer = books.search([1, 0.1], k=4)
    recommended = books.recommend(history=["whale"], k=2)
    predicted = books.recommend(history=[{"id": "whale", "value": 5}], target="ship")
    merged = world["library"].search([1, 0.1], ["books"], k=2)
    for shown in (answer, answer.hits[0], recommended, recommended.hits[0], predicted, merged):
        assert "\n" not in repr(shown)
        assert len(repr(shown)) < 250
        html = shown._repr_html_()
        assert "<table>" in html
        assert "<script" not in html
    assert repr(answer.hits[0]).startswith(f"Hit('{name}', weight 0.")
    assert "4 hits" in repr(answer)
    assert "confidence not fitted yet" in repr(answer)
    assert answer._repr_html_().count("background:") == 4  # a bar for each hit
