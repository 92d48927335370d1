"""The packed forward pass against the plain one, and its attention against a float64 loop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from attend.core.types import Float32
from attend.encoder import DEFAULT, load
from attend.encoder.loading import find

torch = pytest.importorskip("torch")
fused = pytest.importorskip("attend.encoder.forward")

WORDS = ["harbour", "ice", "ferry", "winter", "lantern", "candle", "cart", "bridge", "bell"]


def texts_of(*lengths: int) -> list[str]:
    rng = np.random.default_rng(11)
    return [" ".join(rng.choice(WORDS, size=length)) for length in lengths]


TEXTS = texts_of(1, 1, 2, 5, 9, 9, 30, 30, 31, 90, 200, 400, 400)


def cosines(left: Float32, right: Float32) -> Float32:
    both = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.asarray((left * right).sum(axis=1) / both, dtype=np.float32)


def plain(dtype: Any) -> Float32:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(find(DEFAULT).place, device="cpu").to(dtype)
    return np.asarray(model.encode(TEXTS, show_progress_bar=False), dtype=np.float32)


@pytest.fixture(scope="module")
def exact() -> Float32:
    return plain(torch.float32)


def is_packed(encoder: Any) -> bool:
    return isinstance(encoder.direct, fused.DirectEncoder)


def test_the_default_in_float32_is_the_plain_model(exact: Float32) -> None:
    encoder = load(precision="float32")
    assert is_packed(encoder)
    np.testing.assert_allclose(encoder.encode_documents(TEXTS), exact, atol=2e-6)


def test_small_calls_are_the_plain_model_too(exact: Float32) -> None:
    """Filled up with rows that nobody sees."""
    encoder = load(precision="float32")
    alone = np.concatenate([encoder.encode_documents([text]) for text in TEXTS])
    np.testing.assert_allclose(alone, exact, atol=2e-6)
    small = load(precision="bfloat16")
    rounded = np.concatenate([small.encode_documents([text]) for text in TEXTS])
    assert cosines(rounded, exact).min() > 0.998


def test_calls_of_like_size_have_as_many_rows() -> None:
    """oneDNN prepares its operators anew for each number of rows."""
    seen: list[int] = []

    def layer(rows: Any, steps: object) -> Any:
        seen.append(len(rows))
        return rows

    direct = replace(load(precision="float32").direct, layers=[layer])
    for count in range(1, 1200, 7):
        order, lengths, states = direct.states([[5] * 100] * (count // 100) + [[5] * (count % 100)])
        assert len(order) == count // 100 + 1
        assert lengths.sum() == len(states) == count <= seen[-1] <= max(count * 33 / 32, count + 7)
    assert len(set(seen)) < 110


def test_the_default_in_bfloat16_is_close_to_both(exact: Float32) -> None:
    encoder = load(precision="bfloat16")
    ours = encoder.encode_documents(TEXTS)
    assert is_packed(encoder)
    assert cosines(ours, plain(torch.bfloat16)).min() > 0.9995
    assert cosines(ours, exact).min() > 0.998
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-6)


def test_the_default_in_int8_is_close_to_the_plain_model(exact: Float32) -> None:
    encoder = load(precision="int8")
    assert (encoder.precision, is_packed(encoder)) == ("int8", True)
    together = encoder.encode_documents(TEXTS)
    assert cosines(together, exact).min() > 0.995
    assert cosines(together, exact).max() < 0.99999  # it is not float32
    alone = np.concatenate([encoder.encode_documents([text]) for text in TEXTS])
    assert cosines(alone, together).min() > 0.9995


def test_a_product_in_int8_is_the_exact_one_but_for_its_rounding() -> None:
    """Beside a float64 product: of rows of any scale, zeros and a channel that is far larger."""
    draw = torch.Generator().manual_seed(3)
    weight, bias = torch.randn(96, 32, generator=draw), torch.randn(96, generator=draw)
    rows = torch.randn(700, 32, generator=draw) * torch.logspace(-4, 4, 700)[:, None]
    rows[:, 5] *= 40
    rows[9] = 0
    product = fused.Quantised(fused.Linear(weight, bias), rows)(rows)
    expected = rows.double() @ weight.T.double()
    error = (product - bias - expected).norm(dim=1)
    assert (error <= 0.03 * expected.norm(dim=1) + 1e-5 * bias.norm()).all()
    assert torch.equal(product[9], bias)


@pytest.mark.parametrize("change", [("QUANTISED_AGREEMENT", 1.1), ("Quantised", None)])
def test_a_model_that_int8_does_not_suit_stays_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, Any]
) -> None:
    name, other = change
    monkeypatch.setattr(fused, name, other or (lambda *_: no_operator))
    folder = tiny_transformer(tmp_path, "bert")
    for encoder in (load(precision="int8"), load(str(folder), precision="int8")):
        assert encoder.precision == "float32"
        assert is_packed(encoder)
    np.testing.assert_allclose(encoder.encode_documents(TEXTS), unpacked(folder), atol=1e-5)


def attention_loop(projected: Any, heads: int, lengths: list[int]) -> Any:
    width = projected.shape[1] // 3
    per_head = width // heads
    out = np.zeros((projected.shape[0], width))
    start = 0
    for length in lengths:
        block = projected[start : start + length]
        for head in range(heads):
            at = [
                slice(part * width + head * per_head, part * width + (head + 1) * per_head)
                for part in range(3)
            ]
            query, key, value = (block[:, one] for one in at)
            weights = softmax(query @ key.T / np.sqrt(per_head), axis=1)
            out[start : start + length, at[0]] = weights @ value
        start += length
    return out


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8).map(sorted),
    heads=st.integers(1, 4),
    per_head=st.sampled_from([1, 4, 8]),
    filling=st.integers(0, 8),
)
def test_attention_stays_within_each_sequence(
    lengths: list[int], heads: int, per_head: int, filling: int
) -> None:
    rng = np.random.default_rng(sum(lengths))
    projected = rng.standard_normal((sum(lengths) + filling, 3 * heads * per_head))
    steps = fused.steps_of(np.array(lengths))
    assert [step.length for step in steps for _ in range(step.many)] == lengths
    ours = fused.attend(torch.from_numpy(projected), heads, steps).numpy()
    np.testing.assert_allclose(ours, attention_loop(projected, heads, lengths), atol=1e-10)


# --- other models -----------------------------------------------------------------------------


def config_of(kind: str, **settings: Any) -> Any:
    from transformers import BertConfig, DistilBertConfig, XLMRobertaConfig

    if kind == "distilbert":
        return DistilBertConfig(vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=64)
    family = {"bert": BertConfig, "xlm-roberta": XLMRobertaConfig}[kind]
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    return family(vocab_size=99, intermediate_size=64, **sizes, **settings)


def tiny_transformer(folder: Path, kind: str, **settings: Any) -> Path:
    """A randomly initialised transformer with a vocabulary of letters, saved as a folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import AutoModel, PreTrainedTokenizerFast

    torch.manual_seed(5)
    AutoModel.from_config(config_of(kind, **settings)).save_pretrained(folder)
    # Ids 0 to 3 as XLM-RoBERTa has them: its positions depend on the id of padding.
    names = ["<s>", "<pad>", "</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz"]
    vocabulary = {token: at for at, token in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", model_max_length=64
    )
    wrapped.save_pretrained(folder)
    return folder


def unpacked(folder: Path) -> Float32:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    rows = np.asarray(model.encode(TEXTS, show_progress_bar=False), dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_kin_of_bert_are_packed_and_agree(tmp_path: Path, kind: str) -> None:
    folder = tiny_transformer(tmp_path, kind)
    encoder = load(str(folder), precision="float32")
    assert is_packed(encoder)
    np.testing.assert_allclose(encoder.encode_documents(TEXTS), unpacked(folder), atol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_steps_after_pooling_are_the_models_own(tmp_path: Path, precision: Any) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense

    model = SentenceTransformer(str(tiny_transformer(tmp_path / "plain", "bert")), device="cpu")
    model.append(Dense(32, 8))
    model.save(str(tmp_path / "dense"))
    encoder = load(str(tmp_path / "dense"), precision=precision)
    assert is_packed(encoder)
    assert cosines(encoder.encode_documents(TEXTS), unpacked(tmp_path / "dense")).min() > 0.99


@pytest.mark.parametrize(
    ("kind", "settings"), [("distilbert", {}), ("bert", {"hidden_act": "relu"})]
)
def test_other_architectures_are_left_as_they_are(
    tmp_path: Path, kind: str, settings: dict[str, Any]
) -> None:
    folder = tiny_transformer(tmp_path, kind, **settings)
    encoder = load(str(folder), precision="float32")
    assert not is_packed(encoder)
    np.testing.assert_allclose(encoder.encode_documents(TEXTS), unpacked(folder), atol=1e-5)


def no_operator(*_: Any) -> Any:
    raise RuntimeError("no such operator")


def no_attention(projected: Any, *_: Any) -> Any:
    return projected[:, : projected.shape[1] // 3].clone()


@pytest.mark.parametrize(("name", "broken"), [("Linear", no_operator), ("attend", no_attention)])
def test_a_missing_operator_or_a_wrong_one_leaves_the_plain_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, broken: Any
) -> None:
    folder = tiny_transformer(tmp_path, "bert", initializer_range=0.5)
    monkeypatch.setattr(fused, name, broken)
    encoder = load(str(folder), precision="float32")
    assert not is_packed(encoder)
    np.testing.assert_allclose(encoder.encode_documents(TEXTS), unpacked(folder), atol=1e-5)


def test_weights_in_a_pickle_are_refused(tmp_path: Path) -> None:
    from attend.core.errors import EncoderError

    folder = tiny_transformer(tmp_path, "bert")
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(EncoderError, match="could not be read"):
        load(str(folder))


def test_a_model_that_cannot_run_in_bfloat16_runs_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.nn import Linear

    forward = Linear.forward

    def float32_only(self: Any, rows: Any) -> Any:
        if rows.dtype == torch.bfloat16:
            raise RuntimeError("not implemented for 'BFloat16'")
        return forward(self, rows)

    monkeypatch.setattr(Linear, "forward", float32_only)
    encoder = load(str(tiny_transformer(tmp_path, "bert")), precision="bfloat16")
    assert encoder.precision == "float32"
    assert np.isfinite(encoder.encode_documents(TEXTS)).all()


# --- the default model, without its library ---------------------------------------------------


def test_passages_of_the_default_are_counted_as_its_library_counts() -> None:
    from sentence_transformers import SentenceTransformer

    tokenizer = SentenceTransformer(find(DEFAULT).place, device="cpu").tokenizer
    texts = [*TEXTS, "Ünïcödé 漢字 \u200b x-ray's #1!", "", "unbelievably " * 300]
    encoder = load()
    ours = encoder._splitter.count(texts)
    assert ours.tolist() == [len(ids) for ids in tokenizer(texts, truncation=False)["input_ids"]]
    assert encoder.window == 256


@pytest.mark.parametrize(("name", "broken"), [("Linear", no_operator), ("attend", no_attention)])
def test_the_default_falls_back_to_its_library(
    exact: Float32, monkeypatch: pytest.MonkeyPatch, name: str, broken: Any
) -> None:
    monkeypatch.setattr(fused, name, broken)
    encoder = load(precision="float32")
    assert not is_packed(encoder)
    np.testing.assert_allclose(encoder.encode_documents(TEXTS), exact, atol=2e-6)
