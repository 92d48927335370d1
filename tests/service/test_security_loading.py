"""Nothing here loads what could run code: no pickle, no eval, no model's own program."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import ROOT

SOURCES = [path for part in ("index", "service") for path in sorted((ROOT / part).rglob("*.py"))]
MODULES = frozenset({"pickle", "cPickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"})
FUNCTIONS = frozenset({"eval", "exec", "compile", "__import__"})
LOADERS = frozenset({"torch.load", "yaml.load", "joblib.load", "pandas.read_pickle", "os.system"})


def suspicions(source: str) -> Iterator[str]:
    """What in a source could run what it reads, one sentence for each."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = {each.name.split(".")[0] for each in node.names}
        else:
            names = (
                {(node.module or "").split(".")[0]} if isinstance(node, ast.ImportFrom) else set()
            )
        yield from (f"imports {name}" for name in names & MODULES)
        if isinstance(node, ast.Call):
            yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[str]:
    called = ast.unparse(node.func)
    given = {each.arg: ast.unparse(each.value) for each in node.keywords}
    if called in FUNCTIONS | LOADERS:
        yield f"calls {called}"
    if called in ("np.load", "numpy.load", "np.save") and given.get("allow_pickle") != "False":
        yield f"calls {called} without allow_pickle=False"
    if given.get("trust_remote_code", "False") != "False" or given.get("shell") == "True":
        yield f"calls {called} with what is given to it to run"
    if called == "SentenceTransformer" and "use_safetensors" not in given.get("model_kwargs", ""):
        yield "loads a model without use_safetensors"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_loads_what_could_run(path: Path) -> None:
    assert list(suspicions(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from pickle import loads", "eval(x)", "torch.load(p)", "np.load(p)",
        "np.load(p, allow_pickle=True)", "load(p, trust_remote_code=True)",
        "SentenceTransformer(p)", "run(p, shell=True)",
    ],
)  # fmt: skip
def test_the_look_finds_what_it_looks_for(source: str) -> None:
    assert list(suspicions(source))
