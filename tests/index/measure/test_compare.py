"""Comparisons against SciPy's tests and intervals, plain loops, and the pictures' own figures."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from attend.cli import main
from attend.cli.search import as_text
from attend.collection.data import Data
from attend.core.errors import InvalidRequest, SourceError, UnknownProjection
from attend.measure.plots import gain_histogram, reliability_diagram
from attend.measure.rankings import (
    MEASURES,
    RankedQueries,
    Ranking,
    compare,
    compare_rankings,
    evaluate,
)
from attend.measure.statistics import (
    LEVEL,
    count_gains,
    difference_intervals,
    mean_interval,
    mean_intervals,
    paired_randomisation,
    reliability,
)
from attend.projection import given as projection_given
from tests.index.helpers import vector_data, write_jsonl

# -- statistics ----------------------------------------------------------------------------------

eighths = st.integers(-16, 16).map(lambda n: n / 8)
"""Sums of eighths are exact, so that ties are ties for SciPy too."""


def mean_gain(a, b, axis):
    return np.mean(a - b, axis=axis)


def scipy_p(a, b, resamples: int = 10_000) -> float:
    return stats.permutation_test(
        (a, b),
        mean_gain,
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        rng=7,
    ).pvalue


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(eighths, eighths), min_size=2, max_size=9))
@example([(1.0, 0.0)] * 9)
@example([(1.0, 1.0)] * 2)
def test_with_few_pairs_the_p_value_is_exact(pairs):
    a, b = np.array(pairs).T
    assert paired_randomisation(a, b) == pytest.approx(scipy_p(a, b), abs=1e-12)


@pytest.mark.parametrize("gain", [0.0, 0.01, 0.02, 0.04])
def test_with_many_pairs_it_is_scipys(gain):
    random = np.random.default_rng(3)
    b = random.random(200)
    a = b + gain + random.normal(0, 0.15, 200)
    found, wanted = paired_randomisation(a, b), scipy_p(a, b)
    assert found == pytest.approx(wanted, abs=4 * math.sqrt(2 * wanted * (1 - wanted) / 10_000))
    assert found == paired_randomisation(a, b) == paired_randomisation(b, a)


def test_the_p_value_is_never_nought():
    """(b + 1) / (n + 1): Phipson and Smyth 2010."""
    assert paired_randomisation(np.ones(50), np.zeros(50), resamples=999) == 1 / 1000
    assert paired_randomisation(np.ones(50), np.ones(50)) == 1.0


def test_a_true_null_is_rejected_as_often_as_stated():
    """1,000 draws without a difference: p <= .05 in 5 % of them, give or take 3 errors."""
    random = np.random.default_rng(11)
    null = [random.normal(size=(2, 30)) for _ in range(1000)]
    found = [paired_randomisation(a, b, resamples=999) for a, b in null]
    assert np.mean(np.array(found) <= 0.05) == pytest.approx(0.05, abs=0.021)


@pytest.mark.parametrize("values", ["skewed", "ones and noughts", "normal"])
def test_intervals_are_scipys(values):
    random = np.random.default_rng(5)
    sample = {
        "skewed": random.exponential(size=80) ** 2,
        "ones and noughts": (random.random(120) < 0.9).astype(float),
        "normal": random.normal(size=60),
    }[values]
    wanted = stats.bootstrap((sample,), np.mean, n_resamples=50_000, method="BCa", rng=1)
    error = wanted.standard_error
    found = mean_interval(sample)
    assert found.mean == pytest.approx(sample.mean())
    # The ends by 10,000 draws vary by a few hundredths of a standard error, or by one step of a
    # lattice; percentiles without BCa's correction are off by more in the skewed sample.
    off = max(0.15 * error, 1.01 / 120 if values == "ones and noughts" else 0)
    assert found.low == pytest.approx(wanted.confidence_interval.low, abs=off)
    assert found.high == pytest.approx(wanted.confidence_interval.high, abs=off)
    plain = np.quantile(wanted.bootstrap_distribution, [0.025, 0.975])
    assert (values != "skewed") or (np.abs(plain - wanted.confidence_interval) > off).all()


def test_an_interval_of_differences_keeps_pairs_together():
    random = np.random.default_rng(6)
    b = random.random(100)
    a = b + 0.1 + random.normal(0, 0.01, 100)  # far from each other, but close in pairs
    wanted = stats.bootstrap((a, b), mean_gain, paired=True, vectorized=True, rng=1)
    found = difference_intervals(a, b, [LEVEL])[0]
    assert found.high - found.low < 0.006
    assert (found.low, found.high) == pytest.approx(tuple(wanted.confidence_interval), abs=3e-4)


def test_intervals_of_several_levels_are_those_of_each():
    random = np.random.default_rng(7)
    a, b = random.random((2, 80)) ** 2
    levels = [0.5, 0.95, 0.99]
    nested = difference_intervals(a, b, levels)
    assert nested == [difference_intervals(a, b, [level])[0] for level in levels]
    assert nested[1] == difference_intervals(a, b, [LEVEL])[0]
    assert nested[2].low < nested[1].low < nested[0].low


def test_columns_are_drawn_together_and_each_as_alone():
    columns = np.random.default_rng(8).random((50, 3))
    found = mean_intervals(columns)
    for at in range(3):
        assert found[at] == pytest.approx(mean_interval(columns[:, at]), abs=1e-12)


def test_what_has_no_spread_has_an_interval_of_no_width():
    assert mean_interval([0.1] * 7)[1:] == pytest.approx((0.1, 0.1))
    alone = mean_interval([0.4])
    assert alone.mean == 0.4
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)


def test_an_interval_holds_the_mean_as_often_as_stated():
    """400 draws of 60: 95 % of them, give or take 3 errors and what BCa lacks at this size."""
    random = np.random.default_rng(9)
    found = [mean_interval(random.exponential(size=60)) for _ in range(400)]
    assert np.mean([each.low <= 1 <= each.high for each in found]) == pytest.approx(0.94, abs=0.035)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60),
    st.integers(1, 12),
)
@example([(1.0, True), (0.0, False), (0.5, True)], 2)
def test_reliability_by_a_plain_loop(pairs, bins):
    found = reliability([c for c, _ in pairs], [r for _, r in pairs], bins)
    assert len(found.bins) == bins
    error = 0.0
    for at, each in enumerate(found.bins):
        last = at == bins - 1
        inside = [
            (c, r) for c, r in pairs if each.low <= c and (c < each.high or (last and c <= 1))
        ]
        assert each.size == len(inside)
        if not inside:
            assert each.predicted is each.observed is None
            continue
        predicted, observed = np.mean(inside, axis=0)
        assert (each.predicted, each.observed) == pytest.approx((predicted, observed))
        error += len(inside) / len(pairs) * abs(predicted - observed)
    assert sum(each.size for each in found.bins) == len(pairs)
    assert found.ece == pytest.approx(error, abs=1e-9)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: paired_randomisation([1, 2], [1]), "2 values stand against 1"),
        (lambda: difference_intervals([1.0, math.nan], [1, 2], [LEVEL]), "finite"),
        (lambda: mean_interval([]), "finite number"),
        (lambda: reliability([0.5, 1.5], [0, 1]), "outside 0 to 1"),
        (lambda: reliability([0.5], [0, 1]), "1 values stand against 2"),
    ],
)
def test_what_cannot_be_counted_is_told(call, said):
    with pytest.raises(InvalidRequest, match=said):
        call()


# -- comparisons ---------------------------------------------------------------------------------

WORDS = ["whale", "ship", "bread", "sea", "flour", "harbour", "oven", "anchor", "yeast", "mast"]
QUERIES = {f"q{n}": f"{word} {WORDS[(n + 3) % 10]}" for n, word in enumerate(WORDS)}
QRELS = {f"q{n}": {f"d{n}": 2, f"d{(n + 3) % 10}": 1, f"d{(n + 1) % 10}": -1} for n in range(10)}


@pytest.fixture(scope="module")
def collection(tmp_path_factory, tiny_encoder):
    """Version 1 knows 32 dimensions, version 2 two of them: it ranks worse."""
    data = Data(tmp_path_factory.mktemp("comparing"), load_encoder=lambda name: tiny_encoder)
    made = data.create()
    made.upsert([{"id": f"d{n}", "text": word} for n, word in enumerate(WORDS)])
    assert made.add_projection(made.fit_projection("pca", 2)) == 2
    return made


@pytest.fixture(scope="module")
def worse(collection):
    return compare(collection, QUERIES, QRELS, ("active", 2), examples=2)


def test_both_sides_are_what_evaluate_finds(collection, worse):
    for side, version in ((worse.before, 1), (worse.after, 2)):
        alone = evaluate(collection, QUERIES, QRELS, projection=version)
        assert side.projection == version
        assert side.measures == alone.measures
        for name, (low, high) in side.intervals.items():
            assert low - 1e-9 <= alone.measures[name] <= high + 1e-9
        assert worse.unknown_documents == alone.unknown_documents
    assert worse.before.measures["ndcg@10"] > 0.9
    assert worse.after.measures["ndcg@10"] < 0.8
    assert not worse.disturbed


def both_sides(collection):
    return [evaluate(collection, QUERIES, QRELS, projection=version) for version in (1, 2)]


def test_differences_are_after_less_before_with_scipys_p(collection, worse):
    assert worse.differences.keys() == MEASURES.keys()
    sides = both_sides(collection)
    for name, difference in worse.differences.items():
        before, after = (
            np.array([values[name] for values in side.by_query.values()]) for side in sides
        )
        assert difference.mean == pytest.approx(np.mean(after - before))
        assert difference.p == pytest.approx(scipy_p(after.round(9), before.round(9)), abs=0.002)
        assert difference.interval[0] <= difference.mean <= difference.interval[1]


def test_changes_are_told_with_what_was_found(collection, worse):
    told = worse
    before, after = both_sides(collection)
    gains = {
        id: after.by_query[id]["ndcg@10"] - values["ndcg@10"]
        for id, values in before.by_query.items()
    }
    lost = sorted((gain, id) for id, gain in gains.items() if gain < -1e-9)
    assert [each.gain for each in told.most_lost] == pytest.approx([gain for gain, _ in lost[:2]])
    assert told.lost == len(lost)
    assert told.gained + told.lost + told.unchanged == 10
    for each in (*told.most_lost, *told.most_gained):
        assert each.text == QUERIES[each.query]
        assert each.after - each.before == pytest.approx(each.gain)
        for shown, version in ((each.documents_before, 1), (each.documents_after, 2)):
            hits = collection.search(each.text, k=3, projection=version).hits
            assert [document.id for document in shown] == [hit.id for hit in hits]
            for document in shown:
                assert document.text == WORDS[int(document.id[1:])]
                assert document.grade == QRELS[each.query].get(document.id)


def test_a_version_beside_itself_changes_nothing(collection):
    found = compare(collection, QUERIES, QRELS, (1, "active"))
    assert {each.p for each in found.differences.values()} == {1.0}
    assert {(each.mean, *each.interval) for each in found.differences.values()} == {(0.0, 0.0, 0.0)}
    assert found.unchanged == 10
    assert found.most_gained == found.most_lost == []
    for draw in (reliability_diagram, gain_histogram):
        draw(found).savefig("/dev/null", format="png")


def test_one_query_has_no_interval(collection):
    one = {"q0": QUERIES["q0"]}
    found = compare(collection, one, QRELS, (1, 2))
    plain = found.json()
    assert plain["before"]["intervals"]["ndcg@10"] is None
    assert plain["differences"]["ndcg@10"]["interval"] is None
    assert "[one query]" in as_text(found)
    json.dumps(plain, allow_nan=False)


def rankings(version: int, weights, documents, confidences, generation: int = 1) -> RankedQueries:
    found = zip(weights, documents, confidences, strict=True)
    by_query = {f"q{n}": Ranking(tuple(d), w, c) for n, (w, d, c) in enumerate(found)}
    return RankedQueries(by_query, version, True, (generation, generation))


def test_reliability_of_weight_and_of_confidence(collection):
    """The best is relevant, some other is, none is; a ranking may be empty."""
    queries = {f"q{n}": "any" for n in range(4)}
    qrels = {f"q{n}": {"d0": 1, "d9": -1} for n in range(4)}
    documents = [["d0", "d1"], ["d1", "d0"], ["d9"], []]
    sides = (
        rankings(1, [0.95, 0.55, 0.55, 0.0], documents, [0.9, 0.8, 0.7, 0.0]),
        rankings(2, [1 + 1e-12, 0.5, 0.5, 0.0], documents, [1.0, 1.0, 1.0, -1e-17], generation=2),
    )
    found = compare_rankings(collection, queries, qrels, sides)
    before, after = found.before.reliability, found.after.reliability
    assert before["weight"].ece == pytest.approx((0.05 + 2 * 0.55) / 4)
    assert before["confidence"].ece == pytest.approx((0.1 + 0.2 + 0.7) / 4)
    assert after["weight"].ece == pytest.approx(2 * 0.5 / 4)
    assert after["confidence"].ece == pytest.approx(1 / 4)
    assert found.disturbed
    assert found.before.measures["precision@1"] == 1 / 4  # the empty ranking counts with zeros


def test_gains_are_counted_without_those_that_stayed():
    gains = np.array([0.0, 1e-12, 1.0, -1.0, 0.05, -0.05, 0.31, 0.31])
    found = count_gains(gains)
    assert (found["gained"], found["lost"], found["unchanged"]) == (4, 2, 2)
    edges, counts = found["histogram"]["edges"], found["histogram"]["counts"]
    assert len(edges) == len(counts) + 1
    assert sum(counts) == 6
    inside = dict(zip(edges[:-1], counts, strict=True))
    filled = {edge: count for edge, count in inside.items() if count}
    assert filled == {-1.0: 1, -0.1: 1, 0.0: 1, 0.3: 2, 0.9: 1}


def test_pictures_draw_what_was_counted(worse):
    _, labels = reliability_diagram(worse).axes[0].get_legend_handles_labels()
    assert labels[1:] == [
        f"before (version 1), error {worse.before.reliability['weight'].ece:.3f}",
        f"after (version 2), error {worse.after.reliability['weight'].ece:.3f}",
    ]
    after = reliability_diagram(worse).axes[0].lines[2]
    bins = [each for each in worse.after.reliability["weight"].bins if each.size]
    assert after.get_xdata() == pytest.approx([each.predicted for each in bins])
    assert after.get_ydata() == pytest.approx([each.observed for each in bins])
    axes = gain_histogram(worse).axes[0]
    drawn = [bar.get_height() for bars in axes.containers for bar in bars]
    assert drawn == worse.histogram["counts"]
    assert axes.get_xlabel() == "ndcg@10 after less before"
    assert axes.get_ylabel() == "Queries"


def test_what_cannot_be_compared_is_told(collection):
    with pytest.raises(InvalidRequest, match=r"Unknown measure 'ndcg@7'; choose one of ndcg@10"):
        compare(collection, QUERIES, QRELS, (1, 2), by="ndcg@7")
    asked: list[int] = []
    with pytest.raises(UnknownProjection):
        compare(collection, QUERIES, QRELS, (1, 99), on_progress=asked.append)
    assert asked == []  # told before the first version was ranked
    with pytest.raises(SourceError, match="has a judgement"):
        compare(collection, {"other": "text"}, QRELS, (1, 2))


# -- the command line ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shelf(tmp_path_factory, tiny_encoder_folder):
    """A data folder with two versions, and the files of a test."""
    folder = tmp_path_factory.mktemp("shelf")
    rows = [{"id": f"d{n}", "text": word} for n, word in enumerate(WORDS)]
    invoke("build", write_jsonl(folder / "rows.jsonl", rows), "--data", folder,
           "--encoder", tiny_encoder_folder)  # fmt: skip
    invoke("projections", "--data", folder, "fit", "pca", "--dimensions", 2)
    write_jsonl(folder / "q.jsonl", [{"_id": id, "text": text} for id, text in QUERIES.items()])
    lines = [f"{q}\t{d}\t{grade}\n" for q, of in QRELS.items() for d, grade in of.items()]
    (folder / "qrels.tsv").write_text("".join(lines))
    return folder


def invoke(*arguments: object):
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == 0, result.stderr
    return result


def measured(shelf, *arguments: object):
    command = ("evaluate", "--data", shelf, "--queries", shelf / "q.jsonl")
    return CliRunner().invoke(
        main, [str(each) for each in (*command, "--qrels", shelf / "qrels.tsv", *arguments)]
    )


def test_a_comparison_as_json_with_pictures(shelf, tmp_path):
    pictures = tmp_path / "new" / "pictures"
    result = measured(shelf, "--compare", 2, "active", "--plots", pictures, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["before"]["projection"], found["after"]["projection"]) == (2, 1)
    assert found["before"]["measures"].keys() == found["differences"].keys() == MEASURES.keys()
    gain = found["differences"]["ndcg@10"]
    sides = [found[side]["measures"]["ndcg@10"] for side in ("before", "after")]
    assert gain["mean"] == pytest.approx(sides[1] - sides[0], abs=2e-5)
    assert gain["interval"][0] > 0
    assert gain["p"] <= 0.05
    assert found["gained"] + found["lost"] + found["unchanged"] == found["queries"] == 10
    assert sum(found["histogram"]["counts"]) == found["gained"] + found["lost"]
    assert len(found["most_gained"]) == min(5, found["gained"])
    assert found["most_gained"][0]["documents_after"][0].keys() == {"id", "text", "grade"}
    for side in ("before", "after"):
        for kind in ("weight", "confidence"):
            bins = found[side]["reliability"][kind]["bins"]
            assert sum(each["size"] for each in bins) == 10
    assert found["plots"] == [str(pictures / "reliability.png"), str(pictures / "gains.png")]
    for name in found["plots"]:
        with open(name, "rb") as file:
            head = file.read(24)
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        assert int.from_bytes(head[16:20], "big") >= 1000  # pixels across


def test_plots_without_matplotlib_are_refused_before_anything_is_measured(
    shelf, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    pictures = tmp_path / "pictures"
    result = measured(shelf, "--compare", 2, "active", "--plots", pictures)
    assert result.exit_code == 1
    assert "matplotlib" in result.stderr
    assert "pip install 'attend-retrieval[plots]'" in result.stderr
    assert result.stdout == ""
    assert not pictures.exists()
    assert measured(shelf, "--compare", 2, "active").exit_code == 0


def test_a_comparison_for_people(shelf):
    result = measured(shelf, "--compare", 1, 2, "--examples", 1, "--measure", "mrr@10")
    assert result.exit_code == 0, result.stderr
    text = result.stdout
    assert "before (version 1)" in text
    assert "after (version 2)" in text
    assert "mrr@10: " in text
    assert "Expected calibration error" in text
    assert text.count("Lost most:") == 1
    assert text.count(" before 1  d") == 1 + ("Gained most" in text)
    assert "Written" not in text


def test_a_plain_evaluation_has_intervals_and_takes_options(shelf):
    result = measured(shelf, "--json")
    found = json.loads(result.stdout)
    assert found.keys() == {*MEASURES, "intervals", "queries", "unknown_documents"}
    for name in MEASURES:
        low, high = found["intervals"][name]
        assert low <= found[name] <= high
    few = json.loads(measured(shelf, "--attend", 1, "--json").stdout)
    assert few["recall@100"] <= 0.5 < found["recall@100"]
    other = json.loads(measured(shelf, "--projection", 2, "--json").stdout)
    assert other["ndcg@10"] < found["ndcg@10"]
    laplace = json.loads(measured(shelf, "--scorer", "laplace", "--json").stdout)
    assert laplace["queries"] == 10
    assert "[" in measured(shelf, "--pool", "sum", "--attend", "all").stdout


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--plots", "x"), 2, "--plots need a comparison"),
        (("--measure", "mrr@10", "--examples", 3), 2, "--measure and --examples need"),
        (("--compare", 1, 2, "--projection", 1), 2, "leave --projection out"),
        (("--compare", 1), 2, "requires 2 arguments"),
        (("--compare", 1, "best"), 2, "'best' is not a valid"),
        (("--compare", 0, 1), 2, "0 is not in the range"),
        (("--compare", 1, 2, "--measure", "ndcg"), 2, "'ndcg' is not one of"),
        (("--attend", 0), 2, "attend: Send a whole number from 1"),
        (("--compare", 1, 77), 1, "77"),
        (("--scorer", "none"), 2, "'none' is not one of"),
    ],
)
def test_wrong_usage_is_told(shelf, arguments, status, said):
    result = measured(shelf, *arguments)
    assert result.exit_code == status, result.stdout
    assert said in result.stderr
    assert result.stdout == ""


def test_a_collection_of_vectors_is_compared_with_real_grades(tmp_path):
    """The README's steps without an encoder: teach's files serve evaluate, and --compare."""
    made = vector_data(tmp_path).create(dimension=2)
    made.upsert([{"id": f"d{n}", "vector": [1, n]} for n in range(4)])
    turned = projection_given(np.float32([[1, 0], [0, -1]]), np.eye(2, dtype=np.float32))
    assert made.add_projection(turned) == 2  # the other way round: d0 is first
    write_jsonl(tmp_path / "q.jsonl", [{"_id": "a", "vector": [0, 1]}])
    (tmp_path / "qrels.tsv").write_text("a\td0\t0.5\na\td3\t0.25\na\td1\t-0.5\n")
    files = ("--data", tmp_path, "--queries", tmp_path / "q.jsonl", "--qrels")
    plain = json.loads(invoke("evaluate", *files, tmp_path / "qrels.tsv", "--json").stdout)
    ideal = 0.5 + 0.25 / math.log2(3)
    assert plain["ndcg@10"] == pytest.approx((0.25 + 0.5 / math.log2(5)) / ideal, abs=1e-5)
    compared = ("evaluate", *files, tmp_path / "qrels.tsv", "--compare", 1, 2)
    (gained,) = json.loads(invoke(*compared, "--json").stdout)["most_gained"]
    assert gained["text"] == "[0, 1]"
    assert gained["after"] == pytest.approx((0.5 + 0.25 / math.log2(5)) / ideal, abs=1e-5)
    assert [each["grade"] for each in gained["documents_after"]] == [0.5, -0.5, None]
    assert "d0 (grade 0.5)" in invoke(*compared).stdout
