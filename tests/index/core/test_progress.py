"""Long work shows how far it is: a bar for people, or a function of the caller."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attend import Data
from attend.core.progress import has_viewer


def test_an_upsert_reports_the_share_of_the_texts(tmp_path: Path, tiny_encoder: Any) -> None:
    data = Data(tmp_path, load_encoder=lambda name: tiny_encoder)
    books = data.create("books")
    documents = [{"id": str(n), "text": f"book number {n}"} for n in range(1500)]
    seen: list[tuple[str, float]] = []
    written = books.upsert(documents, progress=lambda stage, done: seen.append((stage, done)))
    assert (written.added, written.encoded) == (1500, 1500)
    assert [stage for stage, _ in seen] == ["encoding texts"] * 3
    assert [done for _, done in seen] == [0.0, 1024 / 1500, 1.0]
    nearest = books.search("book number 1100", k=1).hits[0].id
    assert sorted(nearest) == sorted("1100")  # the encoder counts digits, whatever their order
    data.close()


def test_a_bar_is_shown_where_a_person_may_see_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Data(tmp_path)
    books = data.create("books", dimension=2)
    books.upsert([{"id": "a", "vector": [1, 0]}])
    items = [{"query": [1.0, 0.5], "id": "a"}]
    books.teach(items)
    assert capsys.readouterr().err == ""
    books.train(progress=True)
    assert "reading" in capsys.readouterr().err
    assert not has_viewer()
    notebook = SimpleNamespace(get_ipython=lambda: object())
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    assert has_viewer()
    books.train()
    assert "reading" in capsys.readouterr().err
    books.train(progress=False)
    assert capsys.readouterr().err == ""
    data.close()
