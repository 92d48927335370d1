"""`python -m index recommend`: as a person and as a program call it."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from attend.cli import main
from attend.write.feedback import add_interactions
from tests.index.helpers import vector_data


@pytest.fixture
def folder(tmp_path):
    data = vector_data(tmp_path)
    made = data.create("default", dimension=2, normalize=True)
    made.upsert(
        [
            {"id": f"d{at}", "vector": [1 + at % 5, at % 3], "payload": {"shelf": at % 2}}
            for at in range(12)
        ]
    )
    add_interactions(
        made, [{"user": "ann", "id": "d1", "value": 5}, {"user": "ann", "id": "d2", "value": 2}]
    )
    data.close()
    return tmp_path


def run(folder, *arguments, status=0):
    result = CliRunner().invoke(main, ["recommend", *arguments, "--data", str(folder)])
    assert result.exit_code == status, result.output
    return result


def test_the_same_as_from_python(folder):
    told = json.loads(run(folder, "d1", "d3", "-k", "3", "--explain", "--json").stdout)
    data = vector_data(folder)
    found = data.collection("default").recommend(history=["d1", "d3"], k=3, explain=True).json()
    data.close()
    assert told | {"took_ms": 0} == found | {"took_ms": 0}


def test_options_make_one_request(folder):
    request = folder / "request.json"
    request.write_text(json.dumps({"history": [{"id": "d1", "weight": 2}], "k": 9}))
    asked = ("--request", str(request), "--like", "d4", "--unlike", "d5", "--fact", "shelf=1")
    more = ("--filter", '{"shelf": 1}', "--diversity", "0.2", "--reserve", "0.5", "--with-seen")
    told = json.loads(run(folder, *asked, *more, "-k", "2", "--json").stdout)
    assert told["history"] == {"given": 4, "used": 4}
    assert [hit["payload"]["shelf"] for hit in told["hits"]] == [1, 1]


def test_for_a_person(folder):
    said = run(
        folder, "--user", "ann", "gone", "--on-missing", "skip", "-k", "2", "--explain"
    ).stdout
    assert said.splitlines()[0] == "rank  weight  id"
    assert said.splitlines()[1].startswith("   1  0.")
    assert "because of d" in said
    assert "Missing: gone." in said
    predicted = run(folder, "--user", "ann", "--target", "d4", "--target", "d9").stdout
    assert [line.split()[0] for line in predicted.splitlines()] == ["d4", "d9"]
    assert " ± " in predicted
    assert "(confidence" in predicted
    assert "because" not in predicted
    because = run(folder, "--user", "ann", "--target", "d4", "--explain").stdout.splitlines()[1]
    shares = [float(each) for each in re.findall(r"[01]\.\d\d", because)]
    assert len(shares) == 3  # of d1, d2 and nothing
    assert sum(shares) == pytest.approx(1, abs=0.02)


def test_what_is_wrong_is_a_sentence(folder):
    assert "Nothing is known of the user" in run(folder, status=1).stderr
    assert (
        "is not valid JSON, and no file that holds it"
        in run(folder, "--request", "nowhere", status=2).stderr
    )
    assert "k: 1 or more was expected" in run(folder, "d1", "-k", "0", status=1).stderr
    assert "'x' is not valid JSON" in run(folder, "d1", "--filter", "x", status=2).stderr
