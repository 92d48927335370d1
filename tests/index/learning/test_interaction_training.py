"""Training on interactions from end to end: what is promoted, and what is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from attend.core.errors import InvalidRequest
from attend.learning import Cancelled, interactions, train
from attend.learning.data import read_share_seen, without
from attend.learning.interactions import (
    FORMS,
    HistoryRanker,
    InteractionsTrainer,
    NextItemsChoice,
    history_folds,
    history_weights,
    read_histories,
)
from attend.learning.next_items import item_weights, mean_count
from attend.store import Interaction
from attend.write.feedback import add_interactions
from tests.index.drawn import communities, sparse_of
from tests.index.helpers import several_keys, vector_data

STAGES = ["reading", "trying", "judging", "fitting", "calibrating", "storing"]
STAGES += ["activating", "done"]


def interactions_of(met, value=None, times=None) -> list[Interaction]:
    users, documents = met.nonzero()
    moments = [None] * met.nnz if times is None else times.tolist()
    return [
        Interaction(f"u{user}", f"d{document}", value, time)
        for user, document, time in zip(users.tolist(), documents.tolist(), moments, strict=True)
    ]


def made(folder, memory):
    collection = vector_data(folder).create(dimension=memory.vectors.shape[1], normalize=True)
    collection.upsert(
        [{"id": f"d{at}", "vector": each.tolist()} for at, each in enumerate(memory.vectors)]
    )
    return collection


@pytest.fixture
def planted(tmp_path):
    """A collection whose users keep to groups that its vectors tell, and who met what."""
    rng = np.random.default_rng(0)
    memory, met, _ = communities(rng)
    return made(tmp_path, memory), met


def test_what_is_learned_is_promoted_and_recommends(planted):
    collection, met = planted
    out = np.random.default_rng(3).random(met.nnz) < 0.2
    given, asked = without(met, out), without(met, ~out)
    add_interactions(collection, interactions_of(given))
    untrained = found_of(collection, given, asked)
    stages: list[str] = []

    def progress(stage: str, done: float) -> None:
        if stage not in stages:
            stages.append(stage)

    report = train(collection, objective="interactions", progress=progress)
    assert stages == STAGES
    assert report["promoted"], report["reason"]
    assert report["previous"] == 0
    assert report["version"] == collection.store.state().recommend
    assert collection.store.state().projection == 1  # searches are as they were
    assert report["views"].keys() == {"random", "new", "mix"}
    assert "documents that nobody interacted with" in report["reason"]
    assert report["after"]["ndcg@10"] > report["before"]["ndcg@10"] + 0.1
    assert report["interactions"] == given.nnz
    # These were not there when it was trained.
    assert found_of(collection, given, asked) > untrained + 0.1
    stored = next(each for each in collection.store.projections() if each.role == "recommend")
    assert stored.report["chosen"] == report["chosen"]
    assert collection.rollback("recommend") == 0
    assert found_of(collection, given, asked) == pytest.approx(untrained)


def test_nothing_is_kept_of_a_text_that_changed_during_the_training(planted):
    collection, met = planted
    add_interactions(collection, interactions_of(met))
    document, other = f"d{met.indices[0]}", np.ones(collection.settings.dimension).tolist()

    def progress(stage: str, done: float) -> None:
        if stage == "storing":
            collection.upsert([{"id": document, "vector": other}])

    report = train(collection, objective="interactions", progress=progress)
    assert report["promoted"]
    row = collection.store.rows_of([document])[document]
    terms = collection.store.version(report["version"]).terms
    assert terms
    assert not any(row in rows for rows, _ in terms.values())


def found_of(collection, given, asked) -> float:
    """Recall of what is recommended to the first users."""
    recalls = []
    for user in range(40):
        history = [f"d{at}" for at in given[[user]].indices.tolist()]
        right = {f"d{at}" for at in asked[[user]].indices.tolist()}
        if history and right:
            hits = collection.recommend(history=history, k=10).hits
            recalls.append(len({hit.id for hit in hits} & right) / len(right))
    return float(np.mean(recalls))


def test_where_interactions_have_times_the_latest_ones_judge(planted):
    collection, met = planted
    rng = np.random.default_rng(5)
    times = 1.7e9 + rng.permutation(met.nnz)
    order = rng.permutation(met.nnz)  # they need not be stored in their order
    stored = interactions_of(met, times=times)
    add_interactions(collection, [stored[at] for at in order])
    report = train(collection, objective="interactions")
    assert report["promoted"], report["reason"]
    assert report["views"].keys() == {"latest", "random", "new", "mix"}
    assert "the latest interactions" in report["reason"]
    told = report["held_out"]["latest"]
    late = times > told["after"]
    assert late.mean() == pytest.approx(0.2, abs=0.01)
    users = np.repeat(np.arange(met.shape[0]), np.diff(met.indptr))
    judges = np.intersect1d(users[late], users[~late])
    assert told["users"] == report["views"]["latest"]["queries"] == len(judges)
    assert told["interactions"] == np.isin(users[late], judges).sum()
    material = read_histories(collection, -1, 0)
    earliest = [f"d{material.histories.indices[at]}" for at in np.argsort(material.times)[:5]]
    assert earliest == [each.document for each in sorted(stored, key=lambda i: i.time)[:5]]


def test_the_share_of_known_documents_is_read_from_times_or_counts(planted):
    """Of the latest tenth, those with documents that earlier interactions have; without times the
    documents that one user alone has are what the next interaction is new with."""
    histories = sparse_of(np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0]]))
    times = np.arange(9.0)
    times[7] = 20  # the last user's first document, which others have
    assert read_share_seen(histories, times) == (1.0, "times")
    times[6] = 30  # the third user's last, which nobody else has
    assert read_share_seen(histories, times) == (0.0, "times")
    assert read_share_seen(histories, np.full(9, np.nan)) == (pytest.approx(7 / 9), "counts")
    collection, met = planted
    add_interactions(collection, interactions_of(met))
    assert (np.bincount(met.indices) > 1).all()
    chosen = [
        train(collection, objective="interactions", promote=False, **fields)["chosen"]
        for fields in ({}, {"share_seen": 0.5})
    ]
    names = ("share_seen", "share_seen_from")
    assert [tuple(each[name] for name in names) for each in chosen] == [
        (1.0, "counts"),
        (0.5, "request"),
    ]


LEARNED = NextItemsChoice("near the text")


@pytest.mark.parametrize("keys", [1, 3])
@pytest.mark.parametrize(
    "choice",
    [
        LEARNED,
        LEARNED._replace(form="items", strength=20.0),
        NextItemsChoice(None, form="items", texts=0.25, strength=60.0),
    ],
)
def test_what_is_served_is_what_was_judged(tmp_path, keys, choice):
    """A stored version gives the weights that the fit has, with offsets, gates and all."""
    rng = np.random.default_rng(1)
    memory, met, _ = communities(rng, documents=30)
    collection = vector_data(tmp_path).create(dimension=16, normalize=True)
    near = memory.vectors[:, None] + 0.2 * rng.normal(size=(30, keys, 16))
    collection.upsert([several_keys(f"d{at}", each) for at, each in enumerate(near)])
    add_interactions(collection, interactions_of(met))
    trained = []
    fitted = InteractionsTrainer.fitted

    def keeping(objective, *given):
        trained.append((objective, fitted(objective, *given)))
        return trained[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InteractionsTrainer, "fitted", keeping)
        form, only = choice.form, [NextItemsChoice(None), choice]
        patch.setattr(interactions, "choices_of", lambda forms: only)
        if form is not None:
            patch.setattr(interactions, "FORMS", {form: FORMS[form]})
        report = train(collection, objective="interactions", tolerance=0.05)
    assert report["promoted"], report["reason"]
    objective, (mixture, items) = trained[-1]
    memory = objective.memory
    assert (items is None) == (form is None)
    if form is not None:  # with the ridge of what was judged, which has fewer interactions
        mean = mean_count(objective.folds[0].training)
        assert mean < mean_count(met)
        words = sparse_of(np.zeros((30, 0)))
        expected = choice.logits(item_weights(met, words, FORMS[form], mean))
        np.testing.assert_allclose(items.toarray(), expected.toarray(), rtol=1e-5, atol=1e-6)
    if choice.recipe is not None:
        assert len(mixture.offset_keys)
        assert (mixture.gates != 1).any()
    everything = np.ones(len(memory), dtype=bool)
    for history in (
        sparse_of(np.arange(30)[None] < 27),
        met[[5]],
    ):  # a long one counts by its length
        ranker = HistoryRanker.of(mixture, memory, items)
        expected = history_weights(ranker, history, everything)[0]
        seen = [f"d{at}" for at in history.indices.tolist()]
        answer = collection.recommend(history=seen, k=30, attend="all")
        assert {hit.id for hit in answer.hits} == {f"d{at}" for at in np.flatnonzero(expected >= 0)}
        for hit in answer.hits:
            assert hit.weight == pytest.approx(expected[int(hit.id[1:])], rel=1e-3, abs=1e-7)
    for hit in collection.recommend(history=seen, k=5, attend="all", explain=True).hits:
        assert sum(part["weight"] for part in hit.because) == pytest.approx(1)
        assert {part["id"] for part in hit.because} == set(seen)


def found_ndcg(collection, given, asked) -> float:
    """nDCG@10 of what is recommended to every user."""
    values = []
    for user in range(given.shape[0]):
        history = [f"d{at}" for at in given[[user]].indices.tolist()]
        right = {f"d{at}" for at in asked[[user]].indices.tolist()}
        if history and right:
            ids = [hit.id for hit in collection.recommend(history=history, k=10).hits]
            discounts = 1 / np.log2(np.arange(2, 12))
            gained = sum(discounts[n] for n, id in enumerate(ids) if id in right)
            values.append(gained / discounts[: len(right)].sum())
    return float(np.mean(values))


def sequels(rng, users: int = 400, documents: int = 60):
    """Users who like a document like its neighbours, which no text tells."""
    first = rng.integers(0, documents, (users, 2))
    steps = np.arange(4)
    met = np.zeros((users, documents))
    for start in first.T:
        columns = (start[:, None] + steps) % documents
        keep = rng.random(columns.shape) < 0.8
        met[np.arange(users)[:, None].repeat(4, 1)[keep], columns[keep]] = 1
    return sparse_of(met)


@pytest.mark.parametrize("told", ["noise", "nothing"])
def test_where_texts_tell_nothing_recommendations_are_not_below_ease(tmp_path, told):
    rng = np.random.default_rng(4)
    met = sequels(rng)
    out = rng.random(met.nnz) < 0.25
    given, asked = without(met, out), without(met, ~out)
    vectors = rng.normal(size=(met.shape[1], 16)) if told == "noise" else np.ones((60, 16))
    collection = vector_data(tmp_path).create(dimension=16, normalize=True)
    collection.upsert(
        [
            {"id": f"d{at}", "text": f"w{rng.integers(20)} w{rng.integers(20)}", "vector": v}
            for at, v in enumerate(vectors.tolist())
        ]
    )
    add_interactions(collection, interactions_of(given))
    report = train(collection, objective="interactions", tolerance=0.1)
    assert report["promoted"], report["reason"]
    assert report["chosen"]["form"] != "none"
    gram = (given.T @ given).toarray().astype(np.float64)
    mean = given.nnz / len(gram)
    inverse = np.linalg.inv(gram + 2 * mean * np.eye(len(gram)))
    ease = -inverse / np.diag(inverse)
    np.fill_diagonal(ease, 0)
    values = []
    for user in range(given.shape[0]):
        history, right = given[[user]].indices, set(asked[[user]].indices.tolist())
        if len(history) and right:
            scores = ease[history].sum(axis=0)
            scores[history] = -np.inf
            listed = np.argsort(-scores, kind="stable")[:10].tolist()
            discounts = 1 / np.log2(np.arange(2, 12))
            gained = sum(discounts[n] for n, at in enumerate(listed) if at in right)
            values.append(gained / discounts[: len(right)].sum())
    assert found_ndcg(collection, given, asked) >= np.mean(values) - 0.003


def test_meetings_at_random_promote_nothing(tmp_path):
    rng = np.random.default_rng(2)
    memory, met, _ = communities(rng)
    collection = made(tmp_path, memory)
    shuffled = without(met, np.zeros(met.nnz, dtype=bool))
    shuffled.indices[:] = rng.integers(0, met.shape[1], met.nnz)
    shuffled.sum_duplicates()
    add_interactions(collection, interactions_of(shuffled))
    report = train(collection, objective="interactions")
    assert not report["promoted"], report["reason"]
    assert report["kept"]
    assert collection.store.state().recommend == 0


def test_again_without_anything_new_promotes_nothing_and_with_much_new_does(planted):
    collection, met = planted
    few = np.arange(met.shape[0]) < 60
    late = ~few[np.repeat(np.arange(met.shape[0]), np.diff(met.indptr))]
    add_interactions(collection, interactions_of(without(met, late)))
    first = train(collection, objective="interactions", seed=1)
    assert first["promoted"], first["reason"]
    again = train(collection, objective="interactions", seed=1)
    assert not again["promoted"], again["reason"]
    assert again["previous"] == first["version"]
    add_interactions(collection, interactions_of(without(met, ~late)))
    material = read_histories(collection, first["last_interaction"], 0)
    assert material.histories.nnz == met.nnz
    assert material.previous.nnz == np.count_nonzero(~late)
    later = train(collection, objective="interactions", seed=1)
    assert later["before"]["ndcg@10"] > 0
    assert later["last_interaction"] > first["last_interaction"]


def test_what_recommends_is_judged_as_it_is_where_what_it_learned_from_is_gone(planted):
    """By the ids alone it would have learned from nothing, and anything would be better."""
    collection, met = planted
    add_interactions(collection, interactions_of(met))
    first = train(collection, objective="interactions")
    assert first["promoted"]
    collection.store.delete_interactions()
    add_interactions(collection, interactions_of(met))
    assert read_histories(collection, first["last_interaction"], 0).previous.nnz == 0
    again = train(collection, objective="interactions")
    assert again["before"]["ndcg@10"] >= first["after"]["ndcg@10"] - 0.03
    assert not again["promoted"], again["reason"]


def test_what_is_not_liked_is_not_learned_from(planted):
    collection, met = planted
    add_interactions(collection, interactions_of(met, value=0))
    report = train(collection, objective="interactions")
    assert not report["promoted"]
    assert "this collection has 0; store more interactions" in report["reason"]
    add_interactions(collection, interactions_of(met, value=1))
    assert read_histories(collection, -1, 0).histories.nnz == met.nnz


def test_too_few_users_prove_nothing(tmp_path):
    memory, met, _ = communities(np.random.default_rng(0), users=19)
    collection = made(tmp_path, memory)
    add_interactions(collection, interactions_of(met))
    report = train(collection, objective="interactions")
    assert not report["promoted"]
    assert "20 users with two documents or more are the fewest" in report["reason"]


def test_twenty_users_and_twenty_documents_are_enough_to_try(tmp_path):
    memory, met, _ = communities(np.random.default_rng(0), users=40, documents=20)
    collection = made(tmp_path, memory)
    add_interactions(collection, interactions_of(met))
    report = train(collection, objective="interactions", promote=False)
    assert report["version"] is not None
    assert collection.store.state().recommend == 0
    collection.activate(report["version"])
    assert len(collection.recommend(history=["d0"], k=5).hits) == 5


@pytest.mark.parametrize("stage", ["reading", "trying", "fitting"])
def test_stopped_anywhere_nothing_is_changed(planted, stage):
    collection, met = planted
    add_interactions(collection, interactions_of(met))
    reached: list[str] = []
    with pytest.raises(Cancelled):
        train(
            collection,
            objective="interactions",
            progress=lambda name, done: reached.append(name),
            cancelled=lambda: bool(reached) and reached[-1] == stage,
        )
    assert collection.store.state().recommend == 0
    assert len(collection.store.projections()) == 1


def test_fields_of_other_objectives_are_refused(planted):
    collection, _ = planted
    with pytest.raises(InvalidRequest, match="parts is for the objective ranking"):
        train(collection, objective="interactions", parts=["matrices"])
    with pytest.raises(InvalidRequest, match="dimensions is for the objective ranking or answers"):
        train(collection, objective="interactions", dimensions=4)


def test_the_version_that_recommends_stands_trial_without_what_is_withheld(planted):
    """Fitted again on what it knew, less what judges: else it would have seen the answers."""
    collection, met = planted
    add_interactions(collection, interactions_of(met))
    first = train(collection, objective="interactions")
    again = train(collection, objective="interactions")
    assert again["before"]["ndcg@10"] == pytest.approx(first["after"]["ndcg@10"], abs=0.03)
    for view in history_folds(met, 0):
        assert view.training.multiply(met).nnz == view.training.nnz
