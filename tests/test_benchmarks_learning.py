"""The benchmark of learning: its divisions, its figures, and that it goes on where it stopped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import common
import learning
import learning_answers
import learning_ranking
import learning_safety
import learning_sets

from attend import Collection, Data, Document
from attend import projection as projections
from attend.api.base import parse
from attend.api.search import SearchRequest
from attend.measure.statistics import Interval

SETTING = {"quick": True}


def options(**changes: Any) -> learning_sets.Options:
    plain = learning_sets.Options(
        quick=False,
        rehearse=True,
        peers=True,
        minutes=1.0,
        seeds=range(1),
        keys=10,
        sets=Path("sets"),
    )
    return replace(plain, **changes)


def rows() -> list[common.Row]:
    first = common.row_of("a.one", "one", Interval(0.5, 0.4, 0.6), [0.25, 0.75])
    return [first.wanted(">=", 0.45), common.Row("a.two", "two", 3.0)]


# -- rows -----------------------------------------------------------------------------------


def test_a_row_says_what_was_asked_and_whether_it_holds() -> None:
    row = rows()[0]
    assert row.holds is True
    assert "0.5000" in row.line()
    assert "[0.4000, 0.6000]" in row.line()
    assert ">= 0.45" in row.line()
    assert row.wanted(">=", 0.51).holds is False
    assert row.wanted("<=", 0.5).holds is True
    assert "values" not in row.told()


def test_an_interval_of_one_value_is_none() -> None:
    row = common.row_of("a", "a", Interval(0.5, float("nan"), float("nan")))
    assert (row.low, row.high) == (None, None)


def test_significance_decides_about_differences() -> None:
    gain = common.Row("d", "d", 0.01)
    assert common.ahead(gain, 0.04).holds is True
    assert common.ahead(gain, 0.06).holds is False
    loss = gain._replace(measured=-0.01)
    assert common.ahead(loss, 0.01).holds is False
    assert common.not_behind(loss, 0.06).holds is True
    assert common.not_behind(loss, 0.04).holds is False


def test_results_are_read_again_without_its_half_written_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    results = common.Results(path, SETTING)
    for row in rows():
        results.add("a", row)
    results.finish("a", [row.name for row in rows()])
    with path.open("a") as file:
        file.write('{"section": "b", "ro')
    again = common.Results(path, SETTING)
    assert again.rows == {row.name: row for row in rows()}
    assert again.finished == {"a": ["a.one", "a.two"]}
    assert again.measured("a.two") == 3.0


def test_results_go_on_after_a_half_written_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    common.Results(path, SETTING)
    with path.open("a") as file:
        file.write('{"section": "b", "ro')
    common.Results(path, SETTING).add("a", rows()[0])
    assert list(common.Results(path, SETTING).rows) == ["a.one"]


def test_rows_of_another_setting_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    common.Results(path, SETTING)
    with pytest.raises(SystemExit, match="name another file with --out"):
        common.Results(path, {"quick": False})


# -- composition ----------------------------------------------------------------------------


def test_a_section_that_was_finished_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def section(bench: learning_sets.Bench) -> Iterator[common.Row]:
        calls.append(bench)
        yield from rows()

    monkeypatch.setattr(learning, "SECTIONS", {"a": section})
    told = []
    for _ in range(2):
        results = common.Results(tmp_path / "rows.jsonl", SETTING)
        bench = learning_sets.Bench(options(), learning_sets.Workshop(tmp_path), results)
        learning.measured(bench, "a", quiet=False)
        told.append(capsys.readouterr().out)
    assert len(calls) == 1
    assert told[0] == told[1]
    assert told[0].count("\n") == 2


def test_a_section_that_fails_leaves_the_others_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def section(bench: learning_sets.Bench) -> Iterator[common.Row]:
        yield rows()[0]
        raise RuntimeError("no such luck")

    monkeypatch.setattr(learning, "SECTIONS", {"a": section})
    results = common.Results(None, SETTING)
    bench = learning_sets.Bench(options(), learning_sets.Workshop(tmp_path), results)
    learning.measured(bench, "a", quiet=True)
    assert results.finished == {}
    captured = capsys.readouterr()
    assert "no such luck" in captured.err
    assert captured.out == ""


def test_what_is_left_out_is_what_was_asked_to_be() -> None:
    assert learning.selected(None, options()) == list(learning.SECTIONS)
    assert learning.selected(learning.SETS, options()) == list(learning.SECTIONS)
    assert learning.selected(("conala",), options(peers=False)) == ["conala"]
    assert "live-many" not in learning.selected(None, options(keys=0))
    assert learning.selected(None, options(quick=True)) == list(learning.QUICK)
    asked = learning.selected(("bilingual",), options(quick=True))
    assert asked == ["bilingual"]


def test_ratios_need_both_sides() -> None:
    results = common.Results(None, SETTING)
    for name, value in {"conala.trained": 0.75, "conala.adapter": 0.5, "scifact.hybrid": 1}.items():
        results.add("x", common.Row(name, name, value))
    assert learning.ratios(results) == {
        "ndcg_over_linear_adapter": 1.5,
        "ndcg_over_linear_adapter_conala": 1.5,
    }


# -- sets -----------------------------------------------------------------------------------


@st.composite
def judgements(draw: st.DrawFn) -> learning_sets.Judged:
    count = draw(st.integers(5, 40))
    documents = st.sets(st.integers(0, 30), min_size=1, max_size=3)
    qrels = {f"q{at}": {f"d{d}": 1 for d in draw(documents)} for at in range(count)}
    return learning_sets.Judged({id: id for id in qrels}, qrels)


@given(judgements())
def test_a_division_may_share_no_document(judged: learning_sets.Judged) -> None:
    train, held = learning_sets.divided(judged, disjoint=True)
    assert not train.documents() & held.documents()
    assert not train.queries.keys() & held.queries.keys()


@given(judgements())
def test_a_division_by_queries_loses_none(judged: learning_sets.Judged) -> None:
    train, held = learning_sets.divided(judged, disjoint=False)
    assert train.queries.keys() | held.queries.keys() == judged.queries.keys()
    assert not train.queries.keys() & held.queries.keys()
    assert len(held.queries) == round(0.2 * len(judged.queries))


def test_shuffled_labels_are_those_of_other_questions() -> None:
    qrels = {f"q{at}": {f"d{at}": 1} for at in range(50)}
    train = learning_sets.Judged({id: id for id in qrels}, qrels)
    whole = learning_sets.RankingSet("s", Path(), train, train)
    taught, judge = learning_safety.shuffled(whole, np.random.default_rng(0))
    assert judge == train
    assert taught.documents() == train.documents()
    kept = sum(taught.qrels[id] == qrels[id] for id in qrels)
    assert kept < 5


def test_a_copy_is_changed_alone(tmp_path: Path) -> None:
    workshop = learning_sets.Workshop(tmp_path)
    filled = []

    def fill(collection: Collection) -> None:
        filled.append(collection.write([Document("a", vectors={"vector": [1.0, 0.0]})]))

    for _ in range(2):
        with workshop.copy("set", fill, dimension=2) as collection:
            assert collection.ids() == {"a"}
            collection.upsert([{"id": "b", "vector": [0.0, 1.0]}])
    assert len(filled) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


# -- figures --------------------------------------------------------------------------------


scores = st.lists(st.integers(0, 6).map(float), min_size=2, max_size=40).map(np.array)


@given(scores, scores)
@settings(deadline=None)
def test_the_area_is_that_of_scikit_learn(higher: Any, lower: Any) -> None:
    labels = np.repeat([1, 0], [len(higher), len(lower)])
    expected = roc_auc_score(labels, np.concatenate([higher, lower]))
    assert learning_answers.auroc(higher, lower).mean == pytest.approx(expected)


def test_the_interval_of_the_area_is_that_of_the_bootstrap() -> None:
    random = np.random.default_rng(0)
    higher, lower = random.normal(1, 1, 300), random.normal(0, 1, 200)
    drawn = [
        (random.choice(higher, 300)[:, None] > random.choice(lower, 200)).mean()
        for _ in range(2000)
    ]
    found = learning_answers.auroc(higher, lower)
    assert found.low == pytest.approx(np.quantile(drawn, 0.025), abs=0.005)
    assert found.high == pytest.approx(np.quantile(drawn, 0.975), abs=0.005)


def test_rows_are_ranked_by_cosine() -> None:
    random = np.random.default_rng(1)
    documents = random.normal(size=(7, 4)).astype(np.float32)
    asked = random.normal(size=(3, 4)).astype(np.float32)
    names = [f"d{at}" for at in range(7)]
    ranked = learning_sets.by_rows(names, documents, ["a", "b", "c"], asked)
    for id, query in zip("abc", asked, strict=True):
        cosines = [
            float(query @ each) / np.linalg.norm(query) / np.linalg.norm(each) for each in documents
        ]
        expected = [names[at] for at in np.argsort(cosines)[::-1]]
        assert list(ranked.rankings[id].documents) == expected


# -- the live switch ------------------------------------------------------------------------


@pytest.fixture
def vectors(tmp_path: Path) -> Iterator[Collection]:
    random = np.random.default_rng(2)
    with learning_sets.opened(tmp_path, dimension=8, normalize=True) as collection:
        collection.write(
            [Document(str(at), vectors={"vector": random.normal(size=8)}) for at in range(300)]
        )
        collection.publish()
        yield collection


def test_a_switch_is_met_by_right_answers_alone(vectors: Collection) -> None:
    random = np.random.default_rng(3)
    turned = projections.given(
        random.normal(size=(8, 8)), None, normalize_queries=True, normalize_keys=True
    )
    requests = [
        parse(SearchRequest, {"query": {"vector": random.normal(size=8)}}) for _ in range(4)
    ]
    version = vectors.add_projection(turned)
    switch = learning_ranking.switched(vectors, version, requests)
    assert vectors.store.state().projection == version
    assert switch.searches > 0
    assert (switch.errors, switch.wrong) == (0, 0)
    assert 0 < switch.seconds < 30


def test_documents_of_neither_version_are_wrong(vectors: Collection) -> None:
    answer = vectors.search({"vector": np.ones(8)})
    right = tuple(hit.id for hit in answer.hits)
    met = learning_ranking.Met(0, 0.1, answer, None)
    version = answer.projection
    assert not learning_ranking._is_wrong(met, {version: [right]})
    assert learning_ranking._is_wrong(met, {version: [right[::-1]]})
    assert learning_ranking._is_wrong(met, {version + 1: [right]})


def test_a_variant_differs_in_its_tuning_alone(vectors: Collection) -> None:
    first = vectors.store.projections()[0].version
    changed = learning_sets.variant(vectors, first, examples=0.5, lexical=0.25)
    stored = vectors.store.version(changed)
    assert stored.weights == vectors.store.version(first).weights
    assert stored.tuning == {"examples": 0.5, "lexical": 0.25}
    assert vectors.store.state().projection == first


# -- answers --------------------------------------------------------------------------------


def test_share_and_loss_are_of_the_one_distribution_that_an_answer_states(
    tmp_path: Path, tiny_encoder: Any
) -> None:
    texts, labels = ["whale ship", "ship sea", "bread oven", "flour oven"], ["sea", "sea", "b", "b"]
    data = Data(tmp_path, load_encoder=lambda name: tiny_encoder)
    collection = data.create(values="category")
    collection.write(
        [
            Document(str(at), {"text": text}, value=label)
            for at, (text, label) in enumerate(zip(texts, labels, strict=True))
        ]
    )
    collection.publish()
    asked = learning_answers.Labelled(["sea ship", "oven", "ship"], ["sea", "b", "unknown"])
    guess = learning_answers.soft(collection, asked)
    for at, (text, label) in enumerate(zip(*asked, strict=True)):
        shares = collection.search(text, mode="soft", attend=4).answer["distribution"]
        assert guess.sure[at] == pytest.approx(max(shares.values()))
        assert np.exp(-guess.loss[at]) == pytest.approx(shares.get(label, 0.0))
        assert sum(shares.values()) == pytest.approx(1)
    assert guess.correct.tolist() == [1, 1, 0]
    assert np.isinf(guess.loss[2])
    data.close()
