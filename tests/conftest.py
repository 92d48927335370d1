"""What every test may ask for. Nothing heavy is imported until a fixture is used."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests import warm
from tests.places import PACKAGES

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from attend.encoder import SentenceEncoder

TINY_DIMENSION = 32
TINY_SEED = 20170612

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


TOGETHER = ("milvus", "pages")
"""Folders whose tests share one server, or one browser, and so run in one process: a Milvus server
takes a quarter of a core even where nobody asks it."""


def pytest_configure(config: pytest.Config) -> None:
    """Have what all processes of tests share start before they do."""
    if config.getoption("numprocesses", None):
        warm.begin()


def pytest_unconfigure() -> None:
    warm.end()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Count the processes of tests; most of these wait for processes that they started."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file in one process, and all of a folder of `TOGETHER`."""
    from xdist.scheduler import LoadFileScheduling

    class ByServer(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = Path(super()._split_scope(nodeid))
            return path.parent.name if path.parent.name in TOGETHER else str(path)

    return ByServer(config, log)


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
