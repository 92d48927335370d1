"""`diversity` of a search, against a plain loop of maximal marginal relevance in float64."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from attend.cli import main
from attend.core.errors import InvalidRequest
from attend.projection import Projection, mean_gates
from tests.index.helpers import several_keys, vector_data

WIDTH, DOCUMENTS = 5, 90
QUERY = [1.0, 0.5, -0.25, 0.125, 0.75]


def drawn() -> dict[str, np.ndarray]:
    """Documents of one to three keys around nine directions, so that many are alike."""
    rng = np.random.default_rng(11)
    centres = rng.normal(size=(9, WIDTH))
    return {
        f"d{n}": (centres[n % 9] + 0.2 * rng.normal(size=(1 + n % 3, WIDTH))).astype(np.float32)
        for n in range(DOCUMENTS)
    }


KEYS = drawn()


@pytest.fixture
def collection(tmp_path):
    data = vector_data(tmp_path / "library")
    filled = data.create(dimension=WIDTH, scale=1.0, normalize=False)
    filled.upsert(
        [
            several_keys(id, keys.tolist(), value=n, payload={"n": n, "shelf": n % 7})
            for n, (id, keys) in enumerate(KEYS.items())
        ]
    )
    yield filled
    data.close()


def ids(answer) -> list[str]:
    return [hit.id for hit in answer.hits]


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def mmr(hits, diversity: float, count: int, keys=KEYS) -> list[str]:
    """Carbonell and Goldstein 1998: λ Sim1(D, Q) - (1 - λ) max Sim2(D, Dj), as a plain loop.

    A document is the mean of its keys, and its score is scaled to 0 to 1.
    """
    scores = {hit.id: hit.score for hit in hits}
    low, high = min(scores.values()), max(scores.values())
    means = {id: keys[id].astype(np.float64).mean(axis=0) for id in scores}
    listed: list[str] = []
    while len(listed) < min(count, len(scores)):
        gains = {
            id: (1 - diversity) * (score - low) / (high - low)
            - diversity * max((cosine(means[id], means[one]) for one in listed), default=0)
            for id, score in scores.items()
            if id not in listed
        }
        listed.append(max(gains, key=lambda id: gains[id]))
    return listed


@pytest.mark.parametrize("diversity", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("attend", [40, "all"])
def test_the_list_follows_maximal_marginal_relevance(collection, attend, diversity):
    most = DOCUMENTS if attend == "all" else attend
    plain = collection.search(QUERY, k=most, attend=attend)
    answer = collection.search(QUERY, k=12, attend=attend, diversity=diversity)
    assert ids(answer) == mmr(plain.hits, diversity, 12)
    assert ids(answer) != ids(plain)[:12]
    assert ids(answer)[0] == ids(plain)[0]


def test_a_list_of_nothing_but_relevance_is_the_usual_one(collection):
    plain = collection.search(QUERY, k=20)
    assert ids(collection.search(QUERY, k=20, diversity=0)) == ids(plain)


def test_weights_scores_and_the_answer_stay(collection):
    options = {"mode": "soft", "explain": True}
    plain = collection.search(QUERY, k=40, attend=40, **options)
    answer = collection.search(QUERY, k=10, attend=40, diversity=0.6, **options)
    assert answer.answer == plain.answer
    by_id = {hit.id: hit for hit in plain.hits}
    for hit in answer.hits:
        assert (hit.score, hit.weight) == (by_id[hit.id].score, by_id[hit.id].weight)
        assert hit.explanation["rank"] == ids(plain).index(hit.id) + 1
    hard = collection.search(QUERY, k=3, offset=2, diversity=0.9)
    assert hard.answer == collection.search(QUERY, k=1).answer


def test_pages_are_parts_of_one_list(collection):
    whole = collection.search(QUERY, k=12, diversity=0.4)
    pages = [collection.search(QUERY, k=4, offset=n, diversity=0.4) for n in (0, 4, 8)]
    assert [id for page in pages for id in ids(page)] == ids(whole)
    assert [page.next for page in [*pages, whole]] == [None] * 4


def test_it_chooses_among_what_the_other_options_list(collection):
    plain = collection.search(QUERY, k=DOCUMENTS, filter={"n": {"lt": 50}})
    least = plain.hits[29].score
    answer = collection.search(QUERY, k=8, filter={"n": {"lt": 50}}, min_score=least, diversity=0.7)
    assert ids(answer) == mmr(plain.hits[:30], 0.7, 8)
    groups = collection.search(QUERY, k=7, group_by="shelf")
    diverse = collection.search(QUERY, k=7, group_by="shelf", diversity=0.7)
    assert ids(diverse) == mmr(groups.hits, 0.7, 7)
    assert ids(diverse) != ids(groups)
    sizes = {hit.id: (hit.group, hit.group_size, hit.group_weight) for hit in groups.hits}
    assert sizes == {hit.id: (hit.group, hit.group_size, hit.group_weight) for hit in diverse.hits}


@pytest.mark.parametrize("normalize", [False, True])
def test_likeness_is_by_the_keys_of_the_snapshot(collection, normalize):
    """A version whose keys have length one stores them projected; another one, as they are."""
    weight = np.random.default_rng(2).normal(size=(3, WIDTH)).astype(np.float32)
    lengths = {"normalize_queries": normalize, "normalize_keys": normalize}
    learned = Projection(
        "learned", WIDTH, mean_gates(1), w_q=weight[None], w_k=weight[None], **lengths
    )
    version = collection.add_projection(learned)
    plain = collection.search(QUERY, k=DOCUMENTS, projection=version)
    answer = collection.search(QUERY, k=10, projection=version, diversity=0.5)
    keys = KEYS
    if normalize:
        projected = {id: rows.astype(np.float64) @ weight.T for id, rows in KEYS.items()}
        keys = {
            id: rows / np.linalg.norm(rows, axis=1, keepdims=True) for id, rows in projected.items()
        }
    assert ids(answer) == mmr(plain.hits, 0.5, 10, keys)


def test_a_batch_takes_it_too(collection):
    searches = [{"query": QUERY, "k": 5, "diversity": diversity} for diversity in (0.0, 0.3, 0.9)]
    alone = [ids(collection.search(**search)) for search in searches]
    assert [ids(answer) for answer in collection.search_many(searches)] == alone
    assert len({tuple(listed) for listed in alone}) == 3


def test_few_and_equal_documents(collection):
    assert collection.search(QUERY, filter={"n": -1}, diversity=0.5).hits == []
    assert ids(collection.search(QUERY, filter={"n": 4}, diversity=0.5)) == ["d4"]
    collection.upsert(
        [{"id": f"same{n}", "vector": QUERY, "payload": {"n": 999}} for n in range(3)]
    )
    same = collection.search(QUERY, filter={"n": 999}, diversity=0.5)
    assert ids(same) == ["same0", "same1", "same2"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"cursor": "x"}, "diversity: a page by diversity begins at an offset"),
        ({"coverage": 0.9}, "diversity: coverage does not go with diversity"),
        ({"k": 900, "offset": 101, "attend": "all"}, "reorders at most 1000 places; lower k"),
        ({"diversity": 1.1}, "diversity: 1 or less was expected, but 1.1 was given"),
        ({"mmr": 1}, "did you mean 'diversity'"),
    ],
)
def test_what_makes_no_sense_is_refused(collection, options, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        collection.search(QUERY, **{"diversity": 0.5, **options})


def test_several_collections_have_no_common_likeness(tmp_path):
    library = vector_data(tmp_path)
    library.create("one", dimension=2)
    with pytest.raises(InvalidRequest, match="diversity is for one collection") as refused:
        library.search([1.0, 0.0], ["one"], diversity=0.5)
    assert refused.value.field == "diversity"
    library.close()


def test_the_command_takes_it(collection, tmp_path):
    plain = collection.search(QUERY, k=DOCUMENTS)
    arguments = ["search", json.dumps(QUERY), "--data", str(tmp_path / "library")]
    result = CliRunner().invoke(main, [*arguments, "--diversity", "0.5", "-k", "6", "--json"])
    assert result.exit_code == 0, result.output
    hits = json.loads(result.stdout)["hits"]
    assert [hit["id"] for hit in hits] == mmr(plain.hits, 0.5, 6)
