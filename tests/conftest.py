"""What every test may ask for. Nothing heavy is imported until a fixture is used."""

from __future__ import annotations

import atexit
import gc
import itertools
import os
import shutil
import signal
import string
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests import warm
from tests.many import some
from tests.places import PACKAGES, ROOT

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from attend.encoder import SentenceEncoder

TINY_DIMENSION = 32
TINY_SEED = 20170612

# Each module is compiled once, and not by every process, whatever the machine says.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Commands that tests start are those of this checkout, whatever is installed.
os.environ["PYTHONPATH"] = os.pathsep.join(map(str, PACKAGES))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# The processes of tests share the cores: threads of one that wait for each other keep it busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# No test is about time: machines are noisy.
hypothesis.settings.register_profile("attend", deadline=None)
hypothesis.settings.load_profile("attend")

# Thousands of small databases are written, each to the disk itself before a test goes on.
SHARED_MEMORY = Path("/dev/shm")
if SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > 8 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(SHARED_MEMORY))

# A suite that runs in the background is told to ignore interrupts, and so is all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


TOGETHER = {
    "tests/milvus": "milvus",
    "tests/service/pages/test_libraries.py": "libraries",
    "tests/service/pages/test_search_page.py": "libraries",
    "tests/service/pages": "pages",
}
"""Tests that share one server, or one browser, and so run in one process: a Milvus server takes a
quarter of a core even where nobody asks it."""

SLOW = ("tests/milvus/", "tests/service/pages/", "tests/docs/", "tests/test_install.py")
"""What `--fast` leaves out in any case."""

FAST_SECONDS = 45.0
"""What the files together may take that `--fast` runs, the shortest first."""

SECONDS = Path(__file__).with_name("seconds.tsv")
"""What each file took, in seconds, written by `--record-seconds`. It decides what starts first, and
what is fast."""


def recorded() -> dict[str, float]:
    lines = [line.split("\t") for line in SECONDS.read_text().splitlines()]
    return {name: float(seconds) for name, seconds in lines}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast", action="store_true", help=f"only files that take {FAST_SECONDS:g} s together"
    )
    parser.addoption(
        "--record-seconds", action="store_true", help=f"write what each file took to {SECONDS.name}"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Have what all processes of tests share start before they do."""
    if config.getoption("record_seconds") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())
    if config.getoption("fast"):
        config.stash[FAST] = fast_files()
    elif config.getoption("numprocesses", None):
        warm.begin()


FAST: pytest.StashKey[set[str]] = pytest.StashKey()


def fast_files() -> set[str]:
    """The shortest files that fit into `FAST_SECONDS`, and what was never recorded."""
    chosen, left = set(), FAST_SECONDS
    for name, seconds in sorted(recorded().items(), key=lambda each: each[1]):
        left -= seconds
        if left > 0:
            chosen.add(name)
    return chosen


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if FAST not in config.stash or collection_path.is_dir():
        return None
    name = collection_path.relative_to(ROOT).as_posix()
    known = name in recorded()
    return True if name.startswith(SLOW) or (known and name not in config.stash[FAST]) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Try properties less often, but at night."""
    name = "_hypothesis_internal_use_settings"
    for function in {getattr(item, "function", None) for item in items}:
        usual = getattr(function, name, None)
        if usual is not None or hypothesis.is_hypothesis_test(function):
            usual = usual or hypothesis.settings()
            few = some(usual.max_examples, fewest=20)
            setattr(function, name, hypothesis.settings(usual, max_examples=few))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are collected, and later not among them."""
    gc.disable()
    found = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    return found


class Recorder:
    """Writes what the files took, beside what others took before."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.split("::")[0]
        self.spent[name] = self.spent.get(name, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        taken = recorded() | {name: round(each, 1) for name, each in self.spent.items()}
        lines = [f"{name}\t{taken[name]}\n" for name in sorted(taken) if (ROOT / name).exists()]
        SECONDS.write_text("".join(lines))


def pytest_unconfigure() -> None:
    gc.unfreeze()
    atexit.unregister(gc.freeze)  # of commands that ran in this process
    warm.end()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Count the processes of tests; most of these wait for processes that they started."""
    return (os.cpu_count() or 1) + 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file in one process, and those of `TOGETHER`; begin with the longest."""
    from xdist.scheduler import LoadFileScheduling

    seconds: dict[str, float] = {}
    for name, each in recorded().items():
        seconds[scope_of(name)] = seconds.get(scope_of(name), 0.0) + each

    class LongestFirst(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(super()._split_scope(nodeid))

        def _assign_work_unit(self, node: Any) -> None:
            def length(scope: str) -> float:
                return seconds.get(scope, 0.1 * len(self.workqueue[scope]))

            self.workqueue.move_to_end(max(self.workqueue, key=length), last=False)
            super()._assign_work_unit(node)

    return LongestFirst(config, log)


def scope_of(name: str) -> str:
    """The scope of a file: a name in `TOGETHER`, or the file."""
    return TOGETHER.get(name) or TOGETHER.get(str(Path(name).parent)) or name


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Tokenizer:
    """Any text as pairs of letters, lower-cased; other characters byte by byte.

    It needs no training and knows no unknown word, so that any two words differ unless they
    are made of the same pairs.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    letters = string.ascii_lowercase
    # "Ġ" is how the byte level writes the space before a word.
    pairs = list(itertools.product("Ġ" + letters, letters))
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in pairs)]
    vocabulary = {token: at for at, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


@pytest.fixture(scope="session")
def tiny_encoder_folder(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Tokenizer
) -> Path:
    """A real sentence-transformers model on disk: the mean of fixed random vectors of tokens.

    32 dimensions, no prompts, the same numbers in every run. Texts that share words are close,
    others are not.
    """
    import numpy as np
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    shape = (tiny_tokenizer.get_vocab_size(), TINY_DIMENSION)
    weights = np.random.default_rng(TINY_SEED).standard_normal(shape, dtype=np.float32)
    model = SentenceTransformer(modules=[StaticEmbedding(tiny_tokenizer, weights)], device="cpu")
    folder = tmp_path_factory.mktemp("tiny-encoder")
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


@pytest.fixture(scope="session")
def tiny_encoder(tiny_encoder_folder: Path) -> SentenceEncoder:
    """The tiny model, loaded as any other."""
    from attend.encoder import load

    return load(str(tiny_encoder_folder))
