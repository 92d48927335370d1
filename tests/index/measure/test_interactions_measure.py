"""Top-N evaluation against a published library, and what its protocol leaves out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attend.core.errors import SourceError
from attend.measure.interactions import evaluate, protocol_of, read_ids
from attend.store import Interaction


def pairs(text: str) -> list[Interaction]:
    """`u:abc v:d` are the interactions of u with a, b and c, and of v with d."""
    return [
        Interaction(user, document)
        for part in text.split()
        for user, documents in [part.split(":")]
        for document in documents
    ]


def test_measures_are_those_of_ir_measures():
    import ir_measures

    rng = np.random.default_rng(0)
    ids = [f"d{at}" for at in range(60)]
    before = [Interaction(f"u{u}", id) for u in range(40) for id in rng.choice(ids[:20], 3, False)]
    after = [
        Interaction(f"u{u}", id)
        for u in range(40)
        for id in rng.choice(ids[20:], rng.integers(1, 16), False)
    ]
    lists = {f"u{u}": rng.permutation(ids[20:])[:10].tolist() for u in range(40)}
    found = evaluate(protocol_of(after, before), lambda user, history: lists[user], len(ids))
    qrels = [ir_measures.Qrel(each.user, each.document, 1) for each in after]
    run = [
        ir_measures.ScoredDoc(user, id, -rank)
        for user, documents in lists.items()
        for rank, id in enumerate(documents)
    ]
    ndcg, recall = (ir_measures.parse_measure(name) for name in ("nDCG@10", "R@10"))
    for metric in ir_measures.iter_calc([ndcg, recall], qrels, run):
        value = found.by_user[metric.query_id][0 if metric.measure == ndcg else 1]
        assert value == pytest.approx(metric.value)
    assert found.measures["recall@10"] == pytest.approx(
        np.mean([value[1] for value in found.by_user.values()])
    )
    low, high = found.intervals()["ndcg@10"][1:]
    assert low < found.measures["ndcg@10"] < high


def test_who_is_judged_and_by_what():
    protocol = protocol_of(pairs("u:ax v:b w:y x:a"), pairs("u:ab v:b x:b"))
    assert protocol.relevant == {"u": {"x"}, "x": {"a"}}
    assert protocol.without_history == 1  # w
    assert protocol.left_out == 2  # what u and v had met before
    assert {each.document for each in protocol.histories["u"]} == {"a", "b"}


def test_withheld_documents_are_in_no_history_and_alone_are_right():
    protocol = protocol_of(pairs("u:cd v:c"), pairs("u:ae v:e"), cold=["c", "e"])
    assert protocol.relevant == {"u": {"c"}}
    assert protocol.candidates == {"c", "e"}
    assert [each.document for each in protocol.histories["u"]] == ["a"]
    assert protocol.without_history == 1  # v met nothing but what is withheld


def test_coverage_and_novelty():
    history = pairs("u:a v:ab w:a x:a")
    protocol = protocol_of(pairs("u:b v:c"), history)
    found = evaluate(protocol, lambda user, met: {"u": ["b", "c"], "v": ["c"]}[user], 8)
    assert found.coverage == 2 / 8
    # Of four users one met b, and nobody c, which counts as one.
    assert found.novelty == pytest.approx(np.mean([2.0, 2.0, 2.0]))
    popular = evaluate(protocol, lambda user, met: ["a"], 8)
    assert popular.novelty == 0


def test_an_ideal_list_of_many_is_ten_long():
    many = [Interaction("u", f"d{at}") for at in range(20)]
    protocol = protocol_of(many, pairs("u:a"))
    found = evaluate(protocol, lambda user, met: [f"d{at}" for at in range(10)], 30)
    assert found.by_user["u"] == (pytest.approx(1.0), 0.5)
    second = evaluate(protocol, lambda user, met: ["x", "d0"], 30)
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, 11))
    assert second.by_user["u"][0] == pytest.approx(1 / math.log2(3) / ideal)


def test_files_that_do_not_belong_together():
    with pytest.raises(SourceError, match="None of the 1 users of the test has a history"):
        protocol_of(pairs("u:a"), pairs("v:a"))


def test_ids_are_read_once_each(tmp_path):
    path = tmp_path / "cold.txt"
    path.write_text("b\n\na\nb\n")
    assert read_ids(path) == ["b", "a"]
    path.write_text("\n")
    with pytest.raises(SourceError, match="holds no ids"):
        read_ids(path)
    with pytest.raises(SourceError, match="cannot be read"):
        read_ids(tmp_path / "none.txt")


def test_what_was_valued_at_nothing_is_not_right_and_is_no_history():
    before = [Interaction("u", "a", 5), Interaction("v", "a", 0)]
    after = [Interaction("u", "b", 0), Interaction("u", "c", 3), Interaction("v", "c", 4)]
    protocol = protocol_of(after, before)
    assert protocol.relevant == {"u": {"c"}}
    assert protocol.without_history == 1
    assert [each.document for each in protocol.histories["v"]] == ["a"]
