"""The page about LlamaIndex and Haystack prints what it says."""

from __future__ import annotations

import contextlib
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
