"""The examples of README.md and docs/, as written, one after the other in one folder."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import PACKAGES, ROOT

README = (ROOT / "README.md").read_text()
PAGES = {path.stem: path.read_text() for path in (ROOT / "docs").glob("*.md")}


def section(heading: str) -> str:
    """Return the text of a page of docs/, or of a section of the README."""
    if heading in PAGES:
        return PAGES[heading]
    return README.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def blocks(heading: str, language: str) -> list[str]:
    """Return the blocks of code in a language on a page or under a heading of the README."""
    code = re.findall(rf"```{language}\n(.*?)```", section(heading), re.DOTALL)
    assert code, f"no {language} under {heading}"
    return code


def run(script: str, folder: Path) -> str:
    """What a script of bash prints; its errors come with the failure."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        # `python -m index` is a command of the checkout.
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *PACKAGES))),
    }
    ran = subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr[-5000:]
    return ran.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(scope="module")
def books(folder: Path) -> str:
    """What the command line example prints; the library is there from now on."""
    return run(blocks("Command line", "sh")[0].replace(". .venv/bin/activate\n", ""), folder)


@pytest.fixture(scope="module")
def learned(folder: Path, books: str) -> str:
    return run(blocks("learning", "sh")[0], folder)


def served(script: str) -> str:
    """A script that asks a service, as one that starts it on a free port and fails with a 4xx."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = blocks("http", "sh")[0].replace("--data library", f"--data library --port {port}")
    # An answer ends without a line break; each is to have a line of its own.
    asked = (started + script).replace("curl -s ", "echo; curl -sS --fail-with-body ")
    return "trap 'kill $(jobs -p)' EXIT\n" + asked.replace("localhost:8000", f"127.0.0.1:{port}")


def test_the_command_line_example_runs(books: str) -> None:
    assert "3 added" in books
    assert '"type": "number"' in books
    # Of the three books, the one that plays on a ship comes first.
    assert re.search(r"^\s*1 .* 3  8\.5$", books, re.MULTILINE), books


def test_the_learning_example_learns(folder: Path, learned: str) -> None:
    assert "Version 2 answers from now on." in learned
    compared = re.search(r"^ndcg@10 +(0\.\d+) .*? (0\.\d+) \[", learned, re.MULTILINE)
    assert compared, learned
    assert float(compared[2]) > float(compared[1]) + 0.15  # on queries that were not taught
    assert re.search(r"^\*   2 .* after 1 .*ndcg@10 0\.\d+ -> 0\.\d+$", learned, re.MULTILINE)
    assert "Projection 1 is active.\nProjection 2 is active.\n" in learned
    assert sorted(path.name for path in (folder / "pictures").iterdir()) == [
        "gains.png",
        "reliability.png",
    ]
    assert (folder / "pair" / "modules.json").is_file()


def test_the_http_examples_run(folder: Path, learned: str) -> None:
    answers = run(served(blocks("learning", "sh")[1]), folder).splitlines()
    objects = [json.loads(line) for line in answers if line.startswith("{")]
    by_field = {name: each for each in objects for name in each}
    hits = next(each["hits"] for each in objects if "hits" in each)
    assert {hit["id"] for hit in hits} == {"1", "3"}  # the filter leaves two
    assert by_field["answer"]["answer"]["type"] == "number"
    feedback = next(each for each in objects if "replaced" in each)
    assert (feedback["added"], feedback["replaced"]) == (2, 0)
    jobs = [each for each in objects if "progress" in each]
    assert [each["id"] for each in jobs] == [1, 1, 1]
    assert jobs[0]["request"] == {"share_seen": 0.8}
    assert [each["projection"] for each in objects if set(each) == {"projection"}] == [1]
    assert [each["active"] for each in objects if "active" in each] == [2, 2]
    assert {"deleted": 1} in objects


def test_the_further_http_examples_run(folder: Path, books: str) -> None:
    answers = run(served(blocks("http", "sh")[1]), folder).splitlines()
    objects = [json.loads(line) for line in answers if line.startswith("{")]
    like, blend, grouped, facets, page, patched, deleted, alias, across = objects[-9:]
    assert not {"1", "3"} & {hit["id"] for hit in like["hits"]}
    assert blend["hits"][0]["id"] == "3"
    assert {hit["group"]: hit["group_size"] for hit in grouped["hits"]} == {"sea": 3, "horror": 1}
    assert grouped["hits"][0]["highlight"]["spans"]
    assert facets["total"] == 3
    assert (len(page["documents"]), page["total"]) == (2, 4)
    assert patched["payload"]["lent"] is True
    assert deleted == {"deleted": 1}
    assert alias == {"alias": "live", "collection": "default"}
    assert [hit["collection"] for hit in across["hits"]] == ["default", "default"]


def test_the_examples_of_recommending_run(folder: Path, books: str) -> None:
    said = run(blocks("recommendations", "sh")[0], folder)
    assert "3 interactions added" in said
    first = r"^  1  1\.0000  3  8\.5\n +The Sea-Wolf\n +because of [12] 0\.\d+"
    assert re.search(first, said, re.MULTILINE), said
    assert re.search(r"^3  \d\.\d+ ± \d", said, re.MULTILINE), said
    answers = run(served(blocks("recommendations", "sh")[1]), folder).splitlines()
    objects = [json.loads(line) for line in answers if line.startswith("{")][-8:]
    stored, user, history, examples, facts, predicted, listed, deleted = objects
    assert stored["added"] == 2
    assert [hit["id"] for hit in user["hits"]] == ["3", "4"]
    assert {each["id"] for each in user["hits"][0]["because"]} == {"1", "2"}
    assert {hit["id"] for hit in history["hits"]} == {"2", "4"}
    assert {hit["id"] for hit in examples["hits"]} == {"1", "3", "4"}
    assert facts["history"] == {"given": 2, "used": 2}
    sea, vampire = predicted["predictions"]
    assert sea["mean"] > vampire["mean"]
    assert (len(listed["items"]), deleted) == (2, {"deleted": 2})


def test_the_python_example_of_learning_runs(folder: Path, learned: str) -> None:
    program = blocks("learning", "python")[0]
    said = run(f"python - <<'END'\n{program}END\n", folder)
    assert re.match(r"(True|False) .*ndcg@10: random questions", said), said


def test_the_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("Python", "python")[0], "README.md", "exec"), {})
    distribution = eval(capsys.readouterr().out, {})
    assert list(distribution) == ["billing", "cards"]
    assert distribution["billing"] > 0.9


def test_the_architecture_names_the_folders_there_are() -> None:
    listing = re.search(r"```\n(index/attend/ .*?)```", section("architecture"), re.DOTALL)
    assert listing
    for package, lines in re.findall(
        r"^(index/attend|service/attend_service)/ (.*?)(?=^\w)", listing[1], re.S | re.M
    ):
        named = set(re.findall(r"^  (\w+)/", lines, re.MULTILINE))
        parts = (path for path in (ROOT / package).iterdir() if (path / "__init__.py").exists())
        assert named == {path.name for path in parts}
        for file in re.findall(r"(\w+\.py)", lines):
            assert (ROOT / package / file).is_file(), file


def test_every_command_of_the_pages_exists() -> None:
    from attend_service.cli import main

    pages = "\n".join([README, *PAGES.values()])
    assert set(re.findall(r"^(?:\w+=\$\()?attend (\w+)", pages, re.MULTILINE)) <= set(main.commands)
    assert set(main.commands) <= set(re.findall(r"\w+", README))


def test_links_lead_to_files() -> None:
    for folder, text in [(ROOT, README), *((ROOT / "docs", text) for text in PAGES.values())]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (folder / target).exists(), target


def test_the_examples_of_sizes_run(folder: Path, books: str) -> None:
    said = run(served(blocks("sizes", "sh")[0]), folder)
    assert "fewer than 1000000 keys" in said
    answer = json.loads(next(line for line in said.splitlines() if line.startswith('{"hits"')))
    assert (answer["exact"], "recall" in answer) == (True, False)


def test_the_operation_examples_run(folder: Path, books: str) -> None:
    said = run(served(blocks("operation", "sh")[0]), folder)
    assert re.search(r"default \([34] documents\).* are in library.tar", said), said
    assert re.search(r"are in restored, as of ", said)
    assert "database and index agree" in said
    assert re.search(r"^port +=.*8001 .* flag$", said, re.MULTILINE)
    assert re.search(r'^attend_documents\{collection="default"\} [34]\.0$', said, re.MULTILINE)
    assert '{"name":"again",' in said
