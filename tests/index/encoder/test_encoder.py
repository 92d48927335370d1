"""The encoder on a tiny model whose embeddings a float64 mean of token vectors gives."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attend.core.errors import EncoderError, InvalidRequest
from attend.core.types import Float32
from attend.encoder import DEFAULT, SentenceEncoder, load
from attend.encoder.loading import ALIASES, DEFAULT_SHA256, check_weights, find
from attend.encoder.passages import TOKENS_PER_BATCH, batches, distinct
from tests.places import ROOT

WORDS = ["harbour", "ice", "ferry", "winter", "lantern", "candle", "cart", "bridge", "bell"]
LENGTHS = [1, 3, 3, 8, 20, 20, 60, 150, 150, 300]


def texts_of(lengths: list[int]) -> list[str]:
    rng = np.random.default_rng(7)
    return [" ".join(rng.choice(WORDS, size=length)) for length in lengths]


# --- what callers get -------------------------------------------------------------------------


def test_rows_have_length_one_and_the_stated_shape(tiny_encoder: SentenceEncoder) -> None:
    rows = tiny_encoder.encode_documents(texts_of(LENGTHS))
    assert rows.shape == (len(LENGTHS), tiny_encoder.dimension) == (len(LENGTHS), 32)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)


def test_no_text_gives_no_row_and_a_text_without_tokens_zeros(
    tiny_encoder: SentenceEncoder,
) -> None:
    assert tiny_encoder.encode_documents([]).shape == (0, 32)
    assert tiny_encoder.encode_queries([]).shape == (0, 32)
    assert not tiny_encoder.encode_documents(["", "ice"])[0].any()


def test_embeddings_are_the_mean_of_the_token_vectors(
    tiny_encoder: SentenceEncoder, tiny_encoder_folder: Path
) -> None:
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    table = load_file(tiny_encoder_folder / "model.safetensors")["embedding.weight"]
    tokenizer = Tokenizer.from_file(str(tiny_encoder_folder / "tokenizer.json"))
    texts = texts_of(LENGTHS)
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    means = np.stack([table[each].astype(np.float64).mean(axis=0) for each in ids])
    expected = means / np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(tiny_encoder.encode_documents(texts), expected, atol=1e-5)


def test_the_order_is_the_callers_and_each_text_is_encoded_once(
    tiny_encoder: SentenceEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    run = tiny_encoder.run

    def spy(texts: list[str], task: str) -> Float32:
        seen.extend(texts)
        return run(texts, task)

    monkeypatch.setattr(tiny_encoder, "run", spy)
    texts = texts_of([5, 700, 1, 40, 700, 2]) * 3
    rows = tiny_encoder.encode_documents(texts)
    assert sorted(seen) == sorted(set(texts))
    alone = np.concatenate([tiny_encoder.encode_documents([text]) for text in texts])
    np.testing.assert_allclose(rows, alone, atol=1e-6)


def test_query_and_document_prompts_are_honoured(
    tiny_encoder: SentenceEncoder, tiny_encoder_folder: Path, tmp_path: Path
) -> None:
    prompts = {"query": "question about ", "document": "passage of "}
    folder = shutil.copytree(tiny_encoder_folder, tmp_path / "prompted")
    settings = json.loads((folder / "config_sentence_transformers.json").read_text())
    settings["prompts"] = prompts
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    prompted, texts = load(str(folder)), ["ice", "bell tower"]
    for encode, prompt in (
        (prompted.encode_queries, prompts["query"]),
        (prompted.encode_documents, prompts["document"]),
    ):
        spelled = tiny_encoder.encode_documents([prompt + text for text in texts])
        np.testing.assert_allclose(encode(texts), spelled, atol=1e-6)


def test_a_long_text_is_found_by_its_last_passage(tiny_encoder: SentenceEncoder) -> None:
    text = " ".join(texts_of([2000]))
    (passages,) = tiny_encoder.passages([text])
    assert len(passages) > 5
    assert passages[-1].end == len(text)
    # Each fits the window: alone it would not be split again.
    for start, end in passages:
        assert tiny_encoder.passages([text[start:end]]) == [[(0, end - start)]]


def test_many_threads_get_what_one_gets(tiny_encoder: SentenceEncoder) -> None:
    texts = texts_of([3, 30, 9, 200])
    lots = [texts[at % 4 :] + texts[: at % 4] for at in range(24)]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(tiny_encoder.encode_documents, lots))
    for rows, lot in zip(together, lots, strict=True):
        np.testing.assert_array_equal(rows, tiny_encoder.encode_documents(lot))


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ("ice", r"send \[text\]"),
        (["ice", 3], "Text 1 is of type int"),
        (["ice", "\ud800"], "Text 1 holds half of a surrogate"),
    ],
)
def test_what_is_not_a_list_of_texts_is_refused(
    tiny_encoder: SentenceEncoder, texts: Any, reason: str
) -> None:
    calls = (
        tiny_encoder.encode_documents,
        tiny_encoder.encode_queries,
        tiny_encoder.passages,
    )
    for call in calls:
        with pytest.raises(InvalidRequest, match=reason):
            call(texts)


# --- batching ---------------------------------------------------------------------------------


@given(lengths=st.lists(st.integers(0, 4000)), cores=st.integers(1, 5))
def test_batches_hold_every_text_once_and_give_every_core_one(
    lengths: list[int], cores: int
) -> None:
    found = list(batches(["x" * length for length in lengths], 256, cores))
    assert sorted(at for batch in found for at in batch) == list(range(len(lengths)))
    cost = [min(256, length // 4 + 2) for length in lengths]
    budget = min(TOKENS_PER_BATCH, -(-sum(cost) // cores))
    for batch in found:
        assert sum(cost[at] for at in batch) <= budget or len(batch) == 1
    flat = [lengths[at] for batch in found for at in batch]
    assert flat == sorted(flat, reverse=True)


@given(st.lists(st.sampled_from("abcd")))
def test_distinct_texts_give_back_the_list(texts: list[str]) -> None:
    once, places = distinct(texts)
    assert [once[place] for place in places.tolist()] == texts
    assert len(once) == len(set(texts))


# --- loading ----------------------------------------------------------------------------------


def test_importing_is_light_loading_is_silent_and_the_default_needs_torch_alone(
    tiny_encoder_folder: Path,
) -> None:
    script = (
        "import sys, attend.encoder as e\n"
        "assert not {'torch', 'sentence_transformers', 'tokenizers'} & set(sys.modules)\n"
        "libraries = ('sentence_transformers', 'sklearn', 'transformers')\n"
        "print(e.load(sys.argv[1]).encode_queries(['ice']).shape)\n"
        "print([name for name in libraries if name in sys.modules])\n"
        "print(e.load(sys.argv[2]).encode_queries(['ice']).shape)\n"
    )
    bare = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TOKENIZERS_"))}
    root = ROOT
    done = subprocess.run(
        [sys.executable, "-c", script, DEFAULT, str(tiny_encoder_folder)],
        cwd=root,
        env=bare,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[:3] == ["(1, 384)", "[]", "(1, 32)"]
    assert done.stderr == ""


def test_a_folder_is_named_by_its_full_path(
    tiny_encoder: SentenceEncoder, tiny_encoder_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_encoder_folder.parent)
    assert find(tiny_encoder_folder.name).name == tiny_encoder.name == str(tiny_encoder_folder)


def test_both_spellings_of_the_default_are_one_name() -> None:
    assert {find(name).name for name in ALIASES} == {DEFAULT}


def test_an_unknown_name_is_refused_with_what_there_is() -> None:
    sentence = rf"'no-such-model' is neither.*{DEFAULT}.*HF_HUB_OFFLINE=0"
    with pytest.raises(EncoderError, match=sentence):
        load("no-such-model")


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match="could not be read"):
        load(str(tmp_path))


def test_a_device_that_torch_lacks_is_refused_with_its_reason() -> None:
    with pytest.raises(EncoderError, match=r"could not be read.*nowhere"):
        load(device="nowhere")


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"other")
    with pytest.raises(EncoderError, match=f"but {DEFAULT_SHA256} was expected"):
        check_weights(tmp_path / "model.safetensors", DEFAULT_SHA256)
    with pytest.raises(EncoderError, match="missing"):
        check_weights(tmp_path / "absent.safetensors", DEFAULT_SHA256)


def test_damaged_weights_are_refused(tiny_encoder_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_encoder_folder, tmp_path / "damaged")
    (folder / "model.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(EncoderError, match="could not be read"):
        load(str(folder))


def test_weights_that_are_not_numbers_are_reported(
    tiny_encoder_folder: Path, tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    folder = shutil.copytree(tiny_encoder_folder, tmp_path / "broken")
    table = load_file(folder / "model.safetensors")["embedding.weight"]
    save_file({"embedding.weight": np.full_like(table, np.nan)}, folder / "model.safetensors")
    with pytest.raises(EncoderError, match="not finite"):
        load(str(folder)).encode_documents(["ice"])


# --- precision --------------------------------------------------------------------------------


def test_an_unknown_precision_is_refused(tiny_encoder_folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="'int3' is unknown"):
        load(str(tiny_encoder_folder), precision="int3")  # type: ignore[arg-type]
