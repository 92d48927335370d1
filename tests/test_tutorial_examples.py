"""Attention by example: the cases by which it is taught, each on a real collection.

A document is a key with a value, a query attends to the keys, and the answer is the best
key's value (hard) or the blend of all values by their weights (soft). Read from top to
bottom: lookups first, then numbers, then projections and heads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy.special import softmax

from attend import Answer, Collection, Data
from attend import projection as tensors
from attend.api.base import parse
from attend.api.search import SearchRequest
from attend.projection import given, lsi, spectrum
from tests.index.helpers import split_heads

Vectors = Mapping[str, ArrayLike]
New = Callable[..., Collection]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Data]:
    """One folder for all examples, so that the language model is loaded once."""
    opened = Data(tmp_path_factory.mktemp("tutorial"))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def of_texts(data: Data) -> New:
    """A collection whose keys are texts."""
    names = (f"texts-{number}" for number in itertools.count())

    def new(documents: Sequence[Mapping[str, Any]]) -> Collection:
        collection = data.create(next(names))
        collection.upsert(documents)
        return collection

    return new


@pytest.fixture(scope="session")
def of_vectors(data: Data) -> New:
    """A collection whose keys are vectors of our own, by the documents' ids."""
    names = (f"vectors-{number}" for number in itertools.count())

    def new(keys: Vectors, values: Mapping[str, Any] | None = None, **settings: Any) -> Collection:
        plain = {id: np.asarray(key).tolist() for id, key in keys.items()}
        width = len(next(iter(plain.values())))
        collection = data.create(next(names), dimension=width, **settings)
        collection.upsert(
            {"id": id, "vector": key, "value": (values or {}).get(id)} for id, key in plain.items()
        )
        return collection

    return new


def listed(answer: Answer) -> list[str]:
    return [hit.id for hit in answer.hits]


def weights(answer: Answer) -> dict[str, float]:
    return {hit.id: hit.weight for hit in answer.hits}


def asked_by_id(ids: Sequence[str], **options: Any) -> list[SearchRequest]:
    """Documents as queries over their own collection: self-attention."""
    asked = {"exclude_self": False, **options}
    return [parse(SearchRequest, {"query": {"id": id}, **asked}) for id in ids]


def switch_to(collection: Collection, projection: Any) -> None:
    collection.activate(collection.add_projection(projection))


# -- Lookups: what is attended to is not what is returned ---------------------------------------

PHONE_BOOK = [
    {"id": "1", "text": "Katherine Johnson", "value": "555-0101"},
    {"id": "2", "text": "Alan Turing", "value": "555-0102"},
    {"id": "3", "text": "Emmy Noether", "value": "555-0103"},
]


def test_phone_book_asked_by_a_similar_name(of_texts: New):
    """Names are keys and numbers are values; no name is spelled as it was asked."""
    book = of_texts(PHONE_BOOK)
    assert book.search("Catherine Johnston").answer["value"] == "555-0101"
    assert book.search("A. Turing").answer["value"] == "555-0102"
    assert book.search("Emmi Nöther").answer["value"] == "555-0103"


def test_one_hot_weights_turn_attention_into_retrieval(of_texts: New):
    """The colder the softmax, the more of the weight has the best key: at last all of it."""
    book = of_texts(PHONE_BOOK)
    warm = book.search("Catherine Johnston", mode="soft")
    cold = book.search("Catherine Johnston", mode="soft", temperature=0.001)
    hard = book.search("Catherine Johnston", mode="hard")
    assert warm.hits[0].weight < 1
    assert [hit.weight for hit in cold.hits] == [1, 0, 0]
    assert cold.answer["values"] == [{"id": "1", "value": "555-0101", "weight": 1.0}]
    # It is the same value; only the hard answer tells the weight that the document has.
    first = hard.hits[0]
    assert hard.answer["values"] == [{"id": "1", "value": "555-0101", "weight": first.weight}]
    assert cold.answer == hard.answer | {"values": cold.answer["values"]}


def test_the_same_word_in_other_company_draws_another_value(of_texts: New):
    """A dictionary has one entry for "bank"; a query's neighbours choose among the senses."""
    senses = of_texts(
        [
            {"id": "shore", "text": "The land beside a stream or lake.", "value": "muddy"},
            {"id": "money", "text": "A company that keeps and lends money.", "value": "rich"},
        ]
    )
    assert senses.search("river bank").answer["value"] == "muddy"
    assert senses.search("savings bank").answer["value"] == "rich"


def test_a_video_is_found_by_its_title_or_by_its_description(of_texts: New):
    """Each text field is a key of its own; the document they lead to is one, and weighs once."""
    videos = of_texts(
        [
            {
                "id": "v1",
                "fields": {
                    "title": "Sourdough for beginners",
                    "description": "We visit a windmill and watch the miller grind rye.",
                },
                "value": "watch/v1",
            },
            {
                "id": "v2",
                "fields": {
                    "title": "Mending a puncture",
                    "description": "Tyre levers, a patch, and ten minutes by the road.",
                },
                "value": "watch/v2",
            },
        ]
    )
    for query, field in [("how to bake bread", "title"), ("a miller at work", "description")]:
        found = videos.search(query, explain=True)
        assert found.answer["value"] == "watch/v1"
        assert found.hits[0].explanation["field"] == field
        assert sum(weights(found).values()) == pytest.approx(1)


def test_texts_lead_to_images(of_texts: New):
    """A value may be anything that can be named: here, references to pictures."""
    album = of_texts(
        [
            {"id": "1", "text": "a bicycle leaning on a wall", "value": "album/bicycle.jpg"},
            {"id": "2", "text": "a lighthouse in a storm", "value": "album/lighthouse.png"},
            {"id": "3", "text": "a cat asleep on a sofa", "value": "album/cat.webp"},
        ]
    )
    answer = album.search("a kitten taking a nap", mode="soft").answer
    assert (answer["type"], answer["value"]) == ("image", "album/cat.webp")
    assert sum(each["weight"] for each in answer["values"]) == pytest.approx(1)


# -- Blends: the answer lies between the values -------------------------------------------------

FRENCH = {"cat": "chat", "apple": "pomme", "tree": "arbre", "juice": "jus"}
SIMILARITIES = [0.9, 0.95, 0.2, 0.6]
"""Of the word that is asked for with cat, apple, tree and juice."""


def test_english_to_french_hard(of_vectors: New):
    """English keys, French values: the most similar word's translation."""
    dictionary = of_vectors(dict(zip(FRENCH, np.eye(4), strict=True)), FRENCH)
    assert dictionary.search(SIMILARITIES).answer["value"] == "pomme"


def test_english_to_french_blended_and_decoded(of_vectors: New):
    """Values as vectors blend by the softmax of the similarities; `decode` names the nearest.

    With a key along each axis the query's own numbers are its similarities.
    """
    words = dict(zip(FRENCH.values(), np.eye(4), strict=True))
    dictionary = of_vectors(words, {word: key.tolist() for word, key in words.items()})
    found = dictionary.search(SIMILARITIES, mode="soft", scale=1, decode=True)
    exact = dict(
        zip(FRENCH.values(), [0.30407386, 0.31966406, 0.15099861, 0.22526346], strict=True)
    )
    assert weights(found) == pytest.approx(exact, abs=1e-7)
    assert found.answer["vector"] == pytest.approx(list(exact.values()), abs=1e-7)
    assert found.answer["decoded"]["id"] == "pomme"


def test_a_blend_that_is_mostly_this_decodes_to_this(of_vectors: New):
    """0.8 this, 0.15 forum and 0.05 is: no stored vector, but near one."""
    shares = {"this": 0.8, "forum": 0.15, "is": 0.05}
    meanings = dict(zip(shares, np.eye(3).tolist(), strict=True))
    words = of_vectors({word: [np.log(share)] for word, share in shares.items()}, meanings)
    found = words.search([1.0], mode="soft", scale=1, decode=True)
    assert found.answer["vector"] == pytest.approx([0.8, 0.15, 0.05], abs=1e-7)
    assert found.answer["decoded"]["id"] == "this"
    assert found.answer["decoded"]["value"] == meanings["this"]


def test_keys_that_are_the_values(of_vectors: New):
    """`"value": "@key"` is K = V: the answer is a blend of what was attended to."""
    keys = {"a": [1.0, 0.0], "b": [0.0, 1.0], "c": [1.0, 1.0]}
    collection = of_vectors(keys)
    expected = softmax([1, 0, 1]) @ list(keys.values())
    soft = collection.search([1.0, 0.0], value="@key", mode="soft", scale=1, decode=True)
    assert soft.answer["vector"] == pytest.approx(expected, abs=1e-7)
    assert soft.answer["decoded"]["id"] == "c"
    assert collection.search([0.0, 3.0], value="@key", mask={"only": ["b"]}).answer["vector"] == [
        0.0,
        1.0,
    ]


FEATURES = ("motor", "wings", "leaves", "doors", "4 wheels", "feathers", "seats", "roots")
ROWS = [
    [1, 0, 0.5, 1, 1, 0, 1, 0],
    [0, 1, 0, 1, 1, 1, 0, 0],
    [0.5, 0, 0.5, 0, 0, 0, 0, 1],
    [1, 1, 0, 1, 0, 0, 1, 0],
    [1, 1, 0, 0, 1, 0, 1, 0],
    [0, 1, 0, 0, 0, 1, 0, 0],
    [1, 0, 0, 0, 1, 0, 1, 0],
    [0, 0, 1, 0, 0, 0, 0, 1],
]
CAR = [0.8, 0.66, 0.07, 0.35, 0.96, 0.05, 0.75, 0.0]
CAR_LIKENESS = [0.6, 0.9, 0.05, 0.25, 0.95, 0.01, 0.5, 0.01]


@pytest.fixture(scope="session")
def is_it_a_car(of_vectors: New) -> Collection:
    """Eight features: what each goes together with, and how much it speaks for a car."""
    rows = dict(zip(FEATURES, ROWS, strict=True))
    return of_vectors(rows, dict(zip(FEATURES, CAR_LIKENESS, strict=True)))


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ({}, 0.512329),  # 1/√8, the default for vectors of eight numbers
        ({"scale": 1 / 8}, 0.448391),
        ({"scale": 1}, 0.627149),
        ({"scorer": "laplace"}, 0.654110),
    ],
)
def test_is_it_a_car(is_it_a_car: Collection, options: Mapping[str, Any], answer: float):
    """Scale and scorer say how sharply: the flatter, the nearer to the plain mean of 0.41."""
    found = is_it_a_car.search(CAR, mode="soft", **options)
    assert found.answer["mean"] == pytest.approx(answer, abs=1e-6)


def test_is_it_a_car_said_hard(is_it_a_car: Collection):
    found = is_it_a_car.search(CAR, mode="hard")
    assert found.hits[0].id == "4 wheels"
    assert found.answer["mean"] == 0.95


# -- What is similar, and to whom ---------------------------------------------------------------


def test_refuted_that_a_vector_is_most_similar_to_itself(of_vectors: New):
    """Of dot products that is true only at one length: a longer neighbour wins."""
    keys = {"short": [1.0, 0.0], "long": [3.0, 1.0]}
    plain = of_vectors(keys)
    itself = {"exclude_self": False}
    assert listed(plain.search({"id": "short"}, **itself)) == ["long", "short"]
    assert listed(plain.search({"id": "short"}, scorer="cosine", **itself)) == ["short", "long"]
    unit = of_vectors(keys, normalize=True)
    assert listed(unit.search({"id": "short"}, **itself)) == ["short", "long"]


def test_laplace_beside_dot(of_vectors: New):
    """The dot product rewards length, Laplace attention (minus the L1 distance) nearness."""
    collection = of_vectors({"near": [1.0, 0.5], "far": [4.0, 4.0]})
    by_dot = collection.search([1.0, 1.0], scale=1)
    by_laplace = collection.search([1.0, 1.0], scorer="laplace", scale=1)
    near, far = softmax([1.5, 8.0])
    assert weights(by_dot) == pytest.approx({"near": near, "far": far})
    near, far = softmax([-0.5, -6.0])
    assert weights(by_laplace) == pytest.approx({"near": near, "far": far})


def test_orthonormal_queries_and_keys_attend_one_to_one(of_vectors: New):
    """Self-attention of perpendicular words: each attends to itself, and to nothing else."""
    axes, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))
    ids = [f"word {number}" for number in range(6)]
    words = of_vectors(dict(zip(ids, axes, strict=True)), normalize=True)
    found = words.matrix(asked_by_id(ids))
    np.testing.assert_allclose(found.weights, np.eye(6), atol=1e-6)


def test_masked_documents_have_no_part_in_the_softmax(of_vectors: New):
    """A mask acts before the softmax: what remains shares all of the weight."""
    words = of_vectors({"a": [1.0], "b": [2.0], "c": [3.0]})
    without_c = words.search([1.0], scale=1, mask={"exclude": ["c"]})
    assert weights(without_c) == pytest.approx(dict(zip("ab", softmax([1, 2]), strict=True)))
    only_a = words.search([1.0], scale=1, mask={"only": ["a"]})
    assert weights(only_a) == {"a": 1.0}


def test_causal_masks_let_a_word_see_only_what_came_before(of_vectors: New):
    """Each word of a sentence attends to itself and to the words before it."""
    sentence = dict(zip(["the", "cat", "sleeps"], [[1.0], [2.0], [3.0]], strict=True))
    words = of_vectors(sentence)
    for position, word in enumerate(sentence):
        seen = list(sentence)[: position + 1]
        found = words.search({"id": word}, scale=1, mask={"only": seen})
        shares = softmax([sentence[word][0] * sentence[other][0] for other in seen])
        assert weights(found) == pytest.approx(dict(zip(seen, shares, strict=True)))


def test_where_all_is_masked_nothing_is_attended(of_vectors: New):
    """Never uniform weights: an answer made of nothing would look like any other."""
    words = of_vectors({"a": [1.0], "b": [2.0]}, {"a": 1, "b": 2})
    for attend in (100, "all"):
        found = words.search([1.0], mode="soft", attend=attend, mask={"exclude": ["a", "b"]})
        assert (found.attended, found.hits, found.answered) == (0, [], False)
        assert found.answer["reason"] == "nothing attended"


# -- Projections: W_Q, W_K, W_V, W_O ------------------------------------------------------------

RATINGS = {
    "P1": [1, 1, 1, 0, 0],
    "P2": [3, 3, 3, 0, 0],
    "P3": [4, 4, 4, 0, 0],
    "P4": [5, 5, 5, 0, 0],
    "P5": [0, 2, 0, 4, 4],
    "P6": [0, 0, 0, 5, 5],
    "P7": [0, 1, 0, 2, 2],
}
"""Stars that seven people gave to five films: three of science fiction, two romances."""

P8, P9 = [5, 0, 0, 0, 0], [0, 4, 5, 0, 0]
"""Two who like science fiction, and have seen no film in common."""

LSI_COSINES = [("lsi", 0.9925794247632609), ("lsi-scaled", 0.9877037969111454)]


@pytest.mark.parametrize(("kind", "cosine"), LSI_COSINES)
def test_film_ratings_bring_like_minds_together(of_vectors: New, kind: str, cosine: float):
    """By their films P8 and P9 have nothing in common; by taste, in two dimensions, all."""
    people = of_vectors(RATINGS)
    version = people.add_projection(people.fit_projection(kind, 2))
    people.upsert([{"id": "P8", "vector": P8}, {"id": "P9", "vector": P9}])

    def similarity() -> float:
        only = {"only": ["P9"]}
        return people.search({"id": "P8"}, scorer="cosine", scale=1, mask=only).hits[0].score

    assert similarity() == 0.0
    people.activate(version)
    assert similarity() == pytest.approx(cosine, abs=1e-6)


@pytest.mark.parametrize(("kind", "cosine"), LSI_COSINES)
def test_film_ratings_in_full_precision(kind: str, cosine: float):
    """Not centred and not normalised, the tastes are the two largest singular values'."""
    ratings = np.array(list(RATINGS.values()), dtype=np.float64)
    strengths = spectrum(ratings, centered=False).values
    assert strengths == pytest.approx([12.481, 9.509, 1.346], abs=5e-4)
    taste = lsi(ratings, 2, scaled=kind == "lsi-scaled")
    a, b = taste.queries(np.array([P8, P9], dtype=np.float64))[:, 0]
    assert a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) == pytest.approx(cosine, abs=1e-9)


WORDS = {"he": [1, 0, 0], "Hans": [0, 1, 1], "Mary": [0, 1, -1]}
"""Is it a pronoun, is it a name, and is it a man's."""

PRONOUNS_ASK = np.array([[2, 0, 0], [2, 0, 0]])
NAMES_OFFER = np.array([[0, 1, 0], [0, 0, 1]])


def test_he_attends_to_hans_and_hans_not_to_he(of_vectors: New):
    """W_Q ≠ W_K: what a word looks for is not what it offers."""
    words = of_vectors(WORDS)
    switch_to(words, given(PRONOUNS_ASK, NAMES_OFFER))
    found = words.matrix(asked_by_id(list(WORDS), scale=1))
    he, hans, mary = range(3)
    logits = np.array(found.logits)[:, 0]
    assert logits[he].tolist() == [0, 4, 0]  # he: 2·(a name) + 2·(a man's)
    assert found.weights[he][hans] > 0.9 > found.weights[he][mary]
    assert found.weights[hans][he] == pytest.approx(1 / 3)  # he asks; to be asked, has nothing
    assert logits[he, hans] != logits[hans, he]


def test_with_one_matrix_for_both_attention_is_mutual(of_vectors: New):
    """W_Q = W_K: whatever the words, each is to the other what the other is to it."""
    words = of_vectors(WORDS)
    switch_to(words, given(PRONOUNS_ASK + NAMES_OFFER, PRONOUNS_ASK + NAMES_OFFER))
    logits = np.array(words.matrix(asked_by_id(list(WORDS), scale=1)).logits)[:, 0]
    assert logits.tolist() == logits.T.tolist()
    assert logits[0, 1] != 0


def test_embeddings_of_d_model_become_queries_and_keys_of_d_k(of_vectors: New):
    """Five numbers become two; the default scale follows: 1/√2 and no more 1/√5."""
    rng = np.random.default_rng(1)
    w_q, w_k = rng.integers(-3, 4, size=(2, 2, 5))
    people = of_vectors(RATINGS)
    switch_to(people, given(w_q, w_k))
    logits = np.array(people.matrix(asked_by_id(list(RATINGS))).logits)[:, 0]
    x = np.array(list(RATINGS.values()))
    np.testing.assert_allclose(logits, (x @ w_q.T) @ (x @ w_k.T).T / np.sqrt(2), rtol=1e-6)


def test_values_have_a_width_of_their_own(of_vectors: New):
    """d_v ≠ d_k: keys of two numbers, values of three, and after W_V and W_O answers of one."""
    collection = of_vectors(
        {"a": [1.0, 0.0], "b": [0.0, 1.0]}, {"a": [1.0, 2.0, 3.0], "b": [3.0, 2.0, 1.0]}
    )
    plain = collection.search([1.0, 0.0], mode="soft", scale=1)
    shares = softmax([1, 0])
    blend = shares @ [[1, 2, 3], [3, 2, 1]]
    assert plain.answer["vector"] == pytest.approx(blend)

    w_v, w_o = np.array([[1.0, 0, 0], [0, 0, 2.0]]), np.array([[1.0, 1.0]])
    switch_to(collection, given(np.eye(2), np.eye(2), w_v=w_v, w_o=w_o))
    projected = collection.search([1.0, 0.0], mode="soft", scale=1)
    assert projected.answer["vector"] == pytest.approx(w_o @ w_v @ blend)


def test_keys_are_projected_once_and_queries_once(of_vectors: New, monkeypatch: pytest.MonkeyPatch):
    """Seven keys and three queries are ten products, and not one for each of 21 pairs.

    The additive score too multiplies each side once, but then needs a tanh for every pair.
    """
    people = of_vectors(RATINGS, scorer="laplace")
    w = np.eye(2, 5)
    version = people.add_projection(given(w, w, additive=(np.eye(2), np.eye(2), np.ones(2))))
    projected, pairs = [], []
    affine, tanh = tensors.affine, np.tanh

    def counted_affine(x: Any, *weights: Any) -> Any:
        projected.append(len(x))
        return affine(x, *weights)

    def counted_tanh(x: Any) -> Any:
        pairs.append(x.size // 2)  # of two numbers each
        return tanh(x)

    monkeypatch.setattr(tensors, "affine", counted_affine)
    monkeypatch.setattr(np, "tanh", counted_tanh)
    people.activate(version)
    assert sum(projected) == 7

    three = list(RATINGS)[:3]
    people.search_many(asked_by_id(three))
    assert sum(projected) == 7 + 3
    people.search_many(asked_by_id(three))
    assert sum(projected) == 7 + 3 + 3
    assert sum(pairs) == 0
    people.search_many(asked_by_id(three, scorer="additive"))
    assert sum(projected) == 7 + 3 + 3 + 3
    assert sum(pairs) == 7 * 3


# -- Heads: several softmaxes side by side ------------------------------------------------------

THINGS = {"red square": [1, 0, 1, 0], "blue circle": [0, 1, 0, 1], "blue square": [0, 1, 1, 0]}
"""Red, blue; square, circle."""

RED_CIRCLE = [1, 0, 0, 1]


def test_several_heads_attend_to_different_things(of_vectors: New):
    """There is no red circle: the head for colour finds red, the head for shape a circle."""
    things = of_vectors(THINGS, {"red square": 1, "blue circle": 2, "blue square": 3})
    switch_to(things, split_heads(4, 2))
    found = things.search(RED_CIRCLE, scale=5, explain=True)
    by_head = {hit.id: hit.explanation["weights"] for hit in found.hits}
    chosen, other = softmax([5, 0, 0])[:2]
    assert by_head["red square"] == pytest.approx([chosen, other])
    assert by_head["blue circle"] == pytest.approx([other, chosen])
    mean = (chosen + other) / 2
    assert weights(found) == pytest.approx(
        {"red square": mean, "blue circle": mean, "blue square": other}
    )


def test_heads_may_be_weighted_by_the_one_who_asks(of_vectors: New):
    """`heads` sets the mixture, of the weights listed and of the answer alike."""
    things = of_vectors(THINGS, {"red square": 1, "blue circle": 2, "blue square": 3})
    switch_to(things, split_heads(4, 2))
    chosen, other = softmax([5, 0, 0])[:2]
    for attend in (100, "all"):
        by_shape = things.search(RED_CIRCLE, scale=5, heads=[0, 1], mode="soft", attend=attend)
        assert weights(by_shape) == pytest.approx(
            {"blue circle": chosen, "red square": other, "blue square": other}
        )
        assert by_shape.answer["mean"] == pytest.approx(2 * chosen + 4 * other)


def test_d_model_of_512_is_eight_heads_of_64(of_vectors: New):
    """One square matrix and eight blocks of its rows are the same projection."""
    rng = np.random.default_rng(8)
    w_q, w_k = rng.normal(size=(2, 512, 512)) / np.sqrt(512)
    words = dict(zip("abcde", rng.normal(size=(5, 512)), strict=True))
    collection = of_vectors(words)
    square = collection.add_projection(given(w_q, w_k, heads=8))
    blocks = [w.reshape(8, 64, 512) for w in (w_q, w_k)]
    eight = collection.add_projection(given(*blocks))

    found = [
        collection.matrix(asked_by_id(list(words), projection=version))
        for version in (square, eight)
    ]
    assert found[0].logits == found[1].logits
    x = np.array(list(words.values()))
    queries, keys = x @ w_q.T, x @ w_k.T
    for head in range(8):
        part = slice(64 * head, 64 * (head + 1))
        expected = queries[:, part] @ keys[:, part].T / 8
        np.testing.assert_allclose(np.array(found[0].logits)[:, head], expected, atol=1e-5)
