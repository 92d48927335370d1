"""The page and the docstrings about LlamaIndex and Haystack print what they say."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import os
import re
import shutil
from typing import Any

import pytest

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # before Haystack is imported
pytest.importorskip("haystack")
pytest.importorskip("llama_index.core")

from tests.places import ROOT
from tests.test_public_names import world  # noqa: F401 (a fixture)

pytestmark = pytest.mark.filterwarnings("default")  # of packages that are not ours

PAGE = ROOT / "docs" / "how-to" / "llama-index-haystack.md"


def test_the_page_prints_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "examples" / "intents.csv", tmp_path)
    examples = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 2
    names: dict[str, Any] = {}
    for code, expected in examples:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(code, str(PAGE), "exec"), names)
        assert output.getvalue() == expected


EXAMPLES = {
    test.name: test
    for name in ("framework", "llama_index", "haystack", "haystack_filters")
    for test in doctest.DocTestFinder().find(importlib.import_module(f"attend.connect.{name}"))
    if test.examples
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_docstring_prints_what_it_says(name, world):  # noqa: F811
    EXAMPLES[name].globs |= world
    assert doctest.DocTestRunner().run(EXAMPLES[name], clear_globs=False).failed == 0
