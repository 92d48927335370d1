"""An engine does what it declares, and refuses what it does not, with a sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attend.collection.collection import Collection
from attend.collection.data import Data
from attend.core.errors import AttendError, LimitExceeded, Unsupported
from attend.engines.engine import Capabilities
from tests.milvus.contract import WIDTH
from tests.milvus.differences import PROBED_ELSEWHERE, PROBES, QUERY, both, meanings, table
from tests.places import ROOT

ENGINES = pytest.mark.parametrize("library", ["local", "milvus"], indirect=True, scope="package")
"""A server has no engine of its own."""

UNBOUNDED = 100_000
"""Bytes that an engine without a bound of its own takes."""


@pytest.fixture
def filled(vectors: Collection) -> Collection:
    vectors.upsert([{"id": "d0", "vector": QUERY, "payload": {"colour": "red"}}])
    return vectors


def test_every_capability_is_explained_and_probed() -> None:
    names = set(Capabilities("any").json())
    assert set(meanings()) == {*names, "refusals"}
    assert PROBES.keys() | PROBED_ELSEWHERE.keys() == names
    assert not PROBES.keys() & PROBED_ELSEWHERE.keys()


@ENGINES
@pytest.mark.parametrize("name", PROBES)
def test_what_is_declared_is_done_and_all_else_refused(
    library: Data, filled: Collection, tmp_path: Path, name: str
) -> None:
    refused = None
    try:
        PROBES[name](library, filled, tmp_path / "probe")
    except Unsupported as error:
        refused = error
    except AttendError:
        pass  # it was tried: too little to learn from is no refusal of the engine's
    assert (refused is None) == bool(getattr(library.capabilities, name)), refused
    if refused is not None:
        assert re.fullmatch(r"[A-Z].* are not supported by the engine \w+; .*\.", str(refused))


@ENGINES
def test_attended_sets_have_the_declared_bound(library: Data, filled: Collection) -> None:
    most = library.capabilities.attend_most
    filled.search(QUERY, attend=most or UNBOUNDED)
    if most is not None:
        with pytest.raises(Unsupported, match="attend"):
            filled.search(QUERY, attend=most + 1)


@ENGINES
@pytest.mark.parametrize("name", ["text_bytes", "content_bytes"])
def test_documents_have_the_declared_bound(
    library: Data, filled: Collection, texts: Collection, name: str
) -> None:
    bound = getattr(library.capabilities, name)

    def write(size: int) -> None:
        # Short words: what they come to as JSON is near what they are.
        if name == "text_bytes":
            texts.upsert([{"id": "large", "text": "word " * (size // 5)}])
        else:
            filled.upsert([{"id": "large", "vector": QUERY, "payload": {"t": "x" * size}}])

    try:
        write((bound or UNBOUNDED) - 1000)
        if bound is not None:
            with pytest.raises(LimitExceeded, match="bytes"):
                write(bound + 1000)
    finally:
        filled.delete(["large"])
        texts.delete(["large"])


@ENGINES
def test_documents_are_listed_in_the_declared_order(library: Data, empty: Collection) -> None:
    ids = [f"z{at}" for at in range(20, 0, -1)]
    empty.upsert([{"id": id, "vector": [1.0] * WIDTH} for id in ids])
    listed = [each.id for each in empty.page().documents]
    assert sorted(listed) == sorted(ids)
    assert listed == [each.id for each in empty.page().documents]
    if library.capabilities.insertion_order:
        assert listed == ids


@ENGINES
def test_info_says_which_engine_it_is(library: Data, filled: Collection) -> None:
    assert filled.capabilities is library.capabilities
    assert filled.search(QUERY).exact


def test_the_readme_has_the_differences() -> None:
    pytest.importorskip("pymilvus")
    assert table(*both()) in (ROOT / "docs/how-to/milvus.md").read_text(), (
        "docs/how-to/milvus.md has another table; see 'python -m tests.milvus.differences'"
    )
