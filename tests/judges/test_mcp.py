"""The MCP server, judged by the SDK's own client, in memory and over stdio, in both protocol eras,
and by the conformance suite of the protocol's authors."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import attend
from tests.places import ROOT

pytest.importorskip("mcp", reason="the judges have an environment of their own")

from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

from attend.connect.mcp import LibraryServer
from attend.encoder import SentenceEncoder
from tests.served import served

ERAS = ("legacy", "2026-07-28")
READING = {
    *("answer", "count_documents", "list_collections", "list_documents", "recommend", "search"),
    "why",
}
WRITING = {"add_documents", "delete_documents", "give_feedback", "update_document", "used"}
FOREIGN = "what is the boiling point of tungsten?"
WORDS = tuple(enumerate(("whale", "ship", "island")))
EXAMPLES = ROOT / "examples"
SUITE = "@modelcontextprotocol/conformance@0.1.13"
NOTHING = "no answer: nothing here answers that"


def rows() -> list[dict[str, Any]]:
    with (EXAMPLES / "intents.csv").open() as file:
        return [
            {"id": row["id"], "text": row["text"], "value": row["intent"], "payload": {"n": n}}
            for n, row in enumerate(csv.DictReader(file))
        ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with 200 questions of customers, by the packaged encoder."""
    folder = tmp_path_factory.mktemp("library")
    library = attend.open(folder)
    desk = library.create("desk", values="category")
    desk.upsert(rows())
    desk.publish()
    library.set_alias("help", "desk")
    library.close()
    return folder


@pytest.fixture
def reading(folder: Path) -> Iterator[LibraryServer]:
    library = attend.open(folder, read_only=True)
    yield LibraryServer(library)
    library.close()


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[LibraryServer]:
    library = attend.open(tmp_path / "library")
    yield LibraryServer(library, write=True)
    library.close()


def talk(server: Any, mode: str, ask: Any) -> Any:
    """Return what a function gets of a client that is connected to a server."""

    async def run() -> Any:
        async with Client(server, mode=mode) as client:
            try:
                return await ask(client)
            except MCPError as error:  # raised below: a task group would wrap it
                refused = error
        raise refused

    return asyncio.run(run())


def call(server: Any, mode: str, name: str, **arguments: Any) -> Any:
    """Return the typed result of a tool; the client checks it by the tool's schema."""
    result = talk(server, mode, lambda client: client.call_tool(name, arguments))
    assert not result.is_error, result.content
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


def refusal(server: Any, mode: str, name: str, **arguments: Any) -> str:
    """Return the sentence of a tool that fails."""
    result = talk(server, mode, lambda client: client.call_tool(name, arguments))
    assert result.is_error
    return result.content[0].text


# -- what there is ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ERAS)
def test_a_server_only_reads_unless_it_may_write(
    reading: LibraryServer, writing: LibraryServer, mode: str
) -> None:
    listed = talk(reading, mode, lambda client: client.list_tools()).tools
    assert {tool.name for tool in listed} == READING
    assert all(tool.annotations.read_only_hint for tool in listed)
    listed = talk(writing, mode, lambda client: client.list_tools()).tools
    assert {tool.name for tool in listed} == READING | WRITING
    hints = {tool.name: tool.annotations for tool in listed}
    assert {name for name, hint in hints.items() if not hint.read_only_hint} == WRITING
    assert {name for name, hint in hints.items() if hint.destructive_hint} == WRITING - {
        "give_feedback",
        "used",
    }
    assert all(hints[name].idempotent_hint for name in WRITING)
    for tool in listed:
        assert tool.output_schema["type"] == "object", tool.name
        assert tool.description, tool.name
        assert tool.input_schema["additionalProperties"] is False, tool.name


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("name", sorted(WRITING))
def test_a_server_that_only_reads_writes_nothing(
    reading: LibraryServer, folder: Path, mode: str, name: str
) -> None:
    before = attend.open(folder, read_only=True).collection("desk").info().generation
    arguments = {"id": "billing-1", "query": "x", "ids": ["billing-1"], "documents": []}
    sentence = refusal(reading, mode, name, collection="desk", **arguments)
    assert sentence == f"There is no tool {name!r}; --write adds those that write."
    with pytest.raises(attend.AttendError, match="read only"):
        reading.library.collection("desk").delete(["billing-1"])
    assert attend.open(folder, read_only=True).collection("desk").info().generation == before


# -- reading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ERAS)
def test_a_question_is_answered_from_documents(
    reading: LibraryServer, folder: Path, mode: str
) -> None:
    question = "they took the money twice"
    result = call(reading, mode, "answer", question=question, collection="desk")
    own = attend.open(folder).collection("desk").search(question, mode="soft", k=5)
    assert result["answered"] is True
    assert result["answer"].startswith(f"{own.answer['value']} (")
    assert result["value"]["distribution"] == pytest.approx(own.answer["distribution"])
    assert result["confidence"] == own.confidence
    assert [document["id"] for document in result["documents"]] == [hit.id for hit in own.hits]
    best = result["documents"][0]
    assert best["uri"] == f"attend://desk/{best['id']}"
    assert best["text"] in {row["text"] for row in rows()}


@pytest.mark.parametrize("mode", ERAS)
def test_a_foreign_question_is_answered_nothing_here_answers_that(
    reading: LibraryServer, mode: str
) -> None:
    result = call(reading, mode, "answer", question=FOREIGN, collection="desk")
    assert (result["answered"], result["answer"], result["documents"]) == (False, NOTHING, [])
    assert result["confidence"] < 0.05
    result = call(reading, mode, "search", query=FOREIGN, collection="desk", limit=2)
    assert (result["answered"], result["answer"]) == (False, NOTHING)
    assert len(result["documents"]) == 2


@pytest.mark.parametrize("mode", ERAS)
def test_a_search_has_filters_and_an_alias(reading: LibraryServer, mode: str) -> None:
    result = call(
        *(reading, mode, "search"),
        query="they took the money twice",
        collection="help",
        filter={"@value": {"in": ["refund", "stock"]}, "n": {"gte": 0}},
        limit=30,
    )
    assert {document["value"] for document in result["documents"]} == {"refund", "stock"}
    weights = [document["weight"] for document in result["documents"]]
    assert weights == sorted(weights, reverse=True)
    # Some clients send objects as texts.
    again = call(
        *(reading, mode, "search"),
        query="they took the money twice",
        collection="help",
        filter='{"@value": {"in": ["refund", "stock"]}, "n": {"gte": 0}}',
        limit=30,
    )
    assert again == result


@pytest.mark.parametrize("mode", ERAS)
def test_a_match_is_explained(reading: LibraryServer, mode: str) -> None:
    query = "they took the money twice"
    hits = call(reading, mode, "search", query=query, collection="desk", limit=100)["documents"]
    for rank in (1, 40):
        hit = hits[rank - 1]
        result = call(reading, mode, "why", query=query, id=hit["id"], collection="desk")
        assert (result["rank"], result["weight"]) == (rank, pytest.approx(hit["weight"]))
        assert f"{hit['id']!r} is hit {rank}, with {hit['weight']:.0%}" in result["sentence"]
        assert result["explanation"]["passage"] == hit["text"]
        for left, right, share in result["pairs"]:
            assert left in query
            assert right in hit["text"]
            assert share <= result["pairs"][0][2]
    listed = call(reading, mode, "list_documents", collection="desk", limit=100)
    first = {hit["id"] for hit in hits}
    last = next(item["id"] for item in listed["documents"] if item["id"] not in first)
    result = call(reading, mode, "why", query=query, id=last, collection="desk")
    assert (result["rank"], result["weight"]) == (None, 0.0)


@pytest.mark.parametrize("mode", ERAS)
def test_documents_are_recommended(reading: LibraryServer, mode: str) -> None:
    arguments = {"like": ["billing-1"], "unlike": ["refund-1"], "collection": "desk", "limit": 4}
    result = call(reading, mode, "recommend", **arguments)
    ids = [document["id"] for document in result["documents"]]
    assert len(ids) == 4
    assert "billing-1" not in ids
    assert ids[0].startswith("billing")


@pytest.mark.parametrize("mode", ERAS)
def test_documents_are_listed_by_pages_and_counted(reading: LibraryServer, mode: str) -> None:
    assert call(reading, mode, "list_collections") == {"desk": 200}
    documents: list[Any] = []
    cursor = ""
    while cursor is not None:
        page = call(*(reading, mode, "list_documents"), collection="desk", limit=50, cursor=cursor)
        documents, cursor = documents + page["documents"], page["next"]
        assert page["total"] == 200
    for document, row in zip(documents, rows(), strict=True):
        assert {name: document[name] for name in row} == row
    some = {"@id": {"in": ["refund-3", "billing-1", "nobody"]}}
    page = call(reading, mode, "list_documents", collection="desk", filter=some)
    assert {document["id"] for document in page["documents"]} == {"refund-3", "billing-1"}
    count = call(reading, mode, "count_documents", collection="desk", by=["@value"])
    assert (count["total"], count["facets"]["@value"]["distinct"]) == (200, 10)
    none = call(reading, mode, "count_documents", collection="desk", filter={"colour": "red"})
    assert none["total"] == 0
    assert "colour" in none["hints"][0]


@pytest.mark.parametrize("mode", ERAS)
def test_documents_are_resources(reading: LibraryServer, mode: str) -> None:
    listed = talk(reading, mode, lambda client: client.list_resources()).resources
    assert [str(item.uri) for item in listed] == ["attend://desk"]
    templates = talk(reading, mode, lambda client: client.list_resource_templates())
    uris = {template.uri_template for template in templates.resource_templates}
    assert uris == {"attend://{collection}", "attend://{collection}/{id}"}

    def read(uri: str) -> Any:
        result = talk(reading, mode, lambda client: client.read_resource(uri))
        assert result.contents[0].mime_type == "application/json"
        return json.loads(result.contents[0].text)

    assert read("attend://desk")["documents"] == 200
    document = read("attend://desk/billing-1")
    row = next(row for row in rows() if row["id"] == "billing-1")
    assert document == {
        **{name: row[name] for name in ("id", "value", "payload")},
        "fields": {"text": row["text"]},
    }
    for uri, sentence in (
        ("attend://desk/nobody", "The collection 'desk' has no document 'nobody'."),
        ("attend://films/x", "There is no collection 'films'; the collections are desk."),
    ):
        with pytest.raises(MCPError) as refused:
            read(uri)
        assert (refused.value.error.code, str(refused.value)) == (-32602, sentence)


@pytest.mark.parametrize("mode", ERAS)
def test_wrong_calls_get_a_sentence(reading: LibraryServer, mode: str) -> None:
    def sentence(name: str, **arguments: Any) -> str:
        return refusal(reading, mode, name, **arguments)

    assert sentence("search", query="x") == (
        "There is no collection 'default'; the collections are desk."
    )
    assert sentence("search", query="x", top_k=3) == "top_k: unknown field; did you mean 'limit'?"
    assert sentence("search", query="x", limit=0) == (
        "limit: 1 or more was expected, but 0 was given."
    )
    assert sentence("search") == "query: it is required, but was not sent."
    assert sentence("why", query="x", id="nobody", collection="desk") == (
        "The collection 'desk' has no document 'nobody'."
    )
    assert sentence("find") == "There is no tool 'find'; --write adds those that write."
    operator = {"n": {"above": 3}}
    assert "above" in sentence("search", query="x", collection="desk", filter=operator)


def test_a_fault_of_the_program_tells_the_client_nothing(
    reading: LibraryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Any:
        raise KeyError("secret")

    monkeypatch.setattr(reading.library, "names", broken)
    sentence = refusal(reading, "legacy", "list_collections")
    assert sentence == "Error executing tool list_collections"


# -- writing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ERAS)
def test_documents_are_added_changed_and_deleted(writing: LibraryServer, mode: str) -> None:
    documents = [
        {"id": "a/b c", "text": "A whale, hunted.", "value": 4.2, "payload": {"year": 1851}},
        {"id": "emma", "fields": {"title": "Emma", "body": "A match is made."}, "value": 3},
    ]
    added = call(writing, mode, "add_documents", documents=documents, collection="books")
    assert (added["added"], added["encoded"]) == (2, 3)
    again = call(writing, mode, "add_documents", documents=documents, collection="books")
    assert (again["added"], again["unchanged"]) == (0, 2)
    best = call(writing, mode, "search", query="a hunt at sea", collection="books")["documents"][0]
    assert (best["id"], best["uri"]) == ("a/b c", "attend://books/a%2Fb%20c")
    read = talk(writing, mode, lambda client: client.read_resource(best["uri"]))
    assert json.loads(read.contents[0].text)["payload"] == {"year": 1851}

    changed = call(
        *(writing, mode, "update_document"),
        id="a/b c",
        payload={"lent": True, "year": None},
        collection="books",
    )
    assert (changed["payload"], changed["value"]) == ({"lent": True}, 4.2)
    changed = call(writing, mode, "update_document", id="emma", value=5, collection="books")
    assert (changed["value"], changed["text"]) == (5, "Emma\nA match is made.")
    assert "neither was given" in refusal(
        writing, mode, "update_document", id="emma", collection="books"
    )

    delete = {"name": "delete_documents", "collection": "books"}
    for arguments in ({}, {"ids": ["emma"], "filter": {"lent": True}}):
        assert "exactly one of ids and filter" in refusal(writing, mode, **delete, **arguments)
    assert "every document" in refusal(writing, mode, **delete, filter={})
    assert call(writing, mode, **delete, filter={"lent": True}) == {"deleted": 1}
    assert call(writing, mode, **delete, ids=["emma", "nobody"]) == {"deleted": 1}
    assert call(writing, mode, "list_collections") == {"books": 0}


@pytest.mark.parametrize("mode", ERAS)
def test_a_wrong_document_adds_none(writing: LibraryServer, mode: str) -> None:
    documents = [{"id": "a", "text": "A whale."}, {"id": "b", "texte": "A ship."}]
    sentence = refusal(writing, mode, "add_documents", documents=documents, collection="books")
    assert sentence.startswith("documents.1.texte: unknown field")
    assert call(writing, mode, "list_collections") == {}


@pytest.mark.parametrize("mode", ERAS)
def test_feedback_changes_what_is_found(writing: LibraryServer, mode: str) -> None:
    texts = {"a": "A whale, hunted.", "b": "Soup of the day.", "c": "A map of an island."}
    documents = [{"id": id, "text": text} for id, text in texts.items()]
    call(writing, mode, "add_documents", documents=documents)
    query = "lunch"
    before = call(writing, mode, "search", query=query)["documents"]
    last = before[-1]["id"]
    result = call(writing, mode, "give_feedback", query=query, id=last)
    assert (result["added"], result["examples"]) == (1, 1)
    after = {
        item["id"]: item["weight"]
        for item in call(writing, mode, "search", query=query)["documents"]
    }
    assert after[last] > before[-1]["weight"]
    refused = refusal(writing, mode, "give_feedback", query=query, id="nobody")
    assert "nobody" in refused


@pytest.mark.parametrize("mode", ERAS)
def test_the_library_of_a_server_is_served(
    tmp_path: Path, tiny_encoder: SentenceEncoder, mode: str
) -> None:
    with served(tmp_path, tiny_encoder) as library:
        library.create("books", encoder="tiny")
        server = LibraryServer(library, write=True)
        documents = [{"id": f"d{n}", "text": f"{word} one", "value": n} for n, word in WORDS]
        added = call(server, mode, "add_documents", documents=documents, collection="books")
        assert added["added"] == len(documents)
        query = {"query": "a whale", "collection": "books"}
        best = call(server, mode, "search", **query)["documents"][0]
        assert (best["id"], best["value"]) == ("d0", 0)
        assert best["text"] == "whale one"
        assert call(server, mode, "why", id="d0", **query)["rank"] == 1
        assert call(server, mode, "answer", question="whale", collection="books")["answered"]
        like = call(server, mode, "recommend", like=["d0"], collection="books", limit=1)
        assert like["documents"][0]["id"] != "d0"
        count = call(server, mode, "count_documents", collection="books", by=["@value"])
        assert (count["total"], count["facets"]["@value"]["distinct"]) == (3, 3)
        changed = call(server, mode, "update_document", id="d1", value=7, collection="books")
        assert (changed["value"], changed["text"]) == (7, "ship one")
        call(server, mode, "give_feedback", id="d1", **query)
        call(server, mode, "delete_documents", ids=["d2"], collection="books")
        listed = call(server, mode, "list_documents", collection="books")
        assert [item["id"] for item in listed["documents"]] == ["d0", "d1"]
        read = talk(server, mode, lambda client: client.read_resource("attend://books/d1"))
        assert json.loads(read.contents[0].text)["fields"] == {"text": "ship one"}
        assert (
            json.loads(
                talk(server, mode, lambda client: client.read_resource("attend://books"))
                .contents[0]
                .text
            )["documents"]
            == 2
        )
        sentence = refusal(server, mode, "why", query="x", id="nobody", collection="books")
        assert sentence == "The collection 'books' has no document 'nobody'."


# -- over stdio and HTTP ---------------------------------------------------------------------------


def command(folder: Path, *options: str) -> StdioServerParameters:
    arguments = ["-m", "attend", "mcp", "--data", str(folder), *options]
    return StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))


@pytest.mark.parametrize("mode", ERAS)
def test_a_process_is_asked_over_stdio(folder: Path, mode: str) -> None:
    async def ask(client: Client) -> None:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        assert listed == READING
        arguments = {"question": FOREIGN, "collection": "desk"}
        result = await client.call_tool("answer", arguments)
        assert result.structured_content["answer"] == NOTHING
        arguments["question"] = "they took the money twice"
        result = await client.call_tool("answer", arguments)
        assert result.structured_content["answered"] is True
        refused = await client.call_tool("delete_documents", {"ids": ["billing-1"]})
        assert refused.is_error

    talk(command(folder), mode, ask)


def test_two_processes_write_to_one_folder(tmp_path: Path) -> None:
    async def ask() -> Any:
        one, other = command(tmp_path / "new", "--write"), command(tmp_path / "new", "--write")
        async with Client(one) as writer, Client(other) as reader:
            documents = [{"id": "whale", "text": "A whale, hunted."}]
            await writer.call_tool("add_documents", {"documents": documents})
            return await reader.call_tool("search", {"query": "a hunt"})

    assert asyncio.run(ask()).structured_content["documents"][0]["id"] == "whale"


def test_stdout_has_the_protocol_and_nothing_else(folder: Path) -> None:
    client = {"name": "test", "version": "0"}
    version = "2025-11-25"
    start = {"protocolVersion": version, "capabilities": {}, "clientInfo": client}
    query = {"name": "why", "arguments": {"query": "money", "id": "refund-1", "collection": "desk"}}
    messages = [
        {"id": 1, "method": "initialize", "params": start},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": query},
        {"id": 3, "method": "tools/call", "params": {"name": "search", "arguments": {}}},
        {"id": 4, "method": "resources/read", "params": {"uri": "attend://none/x"}},
        {"id": 5, "method": "no/such/method"},
    ]
    arguments = [sys.executable, "-m", "attend", "mcp", "--data", str(folder)]
    process = subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    replies = {}
    for message in messages:
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        process.stdin.flush()
        if "id" in message:
            reply = json.loads(process.stdout.readline())
            assert reply["jsonrpc"] == "2.0"
            replies[reply["id"]] = reply
    rest, _ = process.communicate(timeout=60)  # it ends as its stdin does
    assert (rest, process.returncode) == ("", 0)
    assert set(replies) == {1, 2, 3, 4, 5}
    assert replies[1]["result"]["protocolVersion"] == version
    assert replies[2]["result"]["structuredContent"]["rank"]
    assert replies[3]["result"]["isError"] is True


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """The address of a server over HTTP, in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [sys.executable, "-m", "attend", "mcp", "--data", str(folder), "--http", str(port)]
    process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize("mode", [*ERAS, "auto"])
def test_a_server_is_asked_over_http(address: str, mode: str) -> None:
    result = call(address, mode, "answer", question=FOREIGN, collection="desk")
    assert result["answer"] == NOTHING
    assert call(address, mode, "list_collections") == {"desk": 200}


def test_the_conformance_suite_finds_what_is_expected(address: str, tmp_path: Path) -> None:
    npx = shutil.which("npx")
    if npx is None:
        pytest.skip("npx is not installed: the conformance suite was not run")
    suite = [npx, "--yes", SUITE]
    probe = subprocess.run([*suite, "--version"], capture_output=True, text=True, timeout=300)
    if probe.returncode:
        pytest.skip(f"{SUITE} is not to be had: the suite was not run ({probe.stderr[-200:]})")
    expected = Path(__file__).with_name("mcp_expected_failures.yml")
    run = subprocess.run(
        [*suite, "server", "--url", address, "--expected-failures", str(expected)],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=tmp_path,
    )
    # It fails where something fails that is not expected, and where something expected passes.
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    passed = set(re.findall(r"^✓ ([\w-]+): [1-9]\d* passed", run.stdout, re.MULTILINE))
    assert passed >= {
        *("server-initialize", "ping", "completion-complete", "tools-list", "tools-call-error"),
        *("resources-list", "prompts-list", "dns-rebinding-protection"),
    }


def test_each_expected_failure_has_a_reason() -> None:
    text = Path(__file__).with_name("mcp_expected_failures.yml").read_text()
    entries = [line for line in text.splitlines() if line.startswith("  - ")]
    assert entries
    assert [line for line in entries if not re.search(r"  # \S", line)] == []


def test_the_agent_answers_from_documents_and_says_when_nothing_answers(tmp_path: Path) -> None:
    library = attend.open(tmp_path)
    desk = library.create(values="category")
    desk.upsert(rows())
    desk.publish()
    library.close()
    questions = ["they took the money twice", FOREIGN, "How many documents are there?"]
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / "agent_mcp.py"), str(tmp_path), *questions],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    first, foreign, count = re.split(r"\n(?=\S)", run.stdout.strip())
    assert re.fullmatch(
        r"they took the money twice\n  billing \(0\.\d\d\): '.+'(\n  attend://default/[\w-]+){5}",
        first,
    )
    assert foreign == f"{FOREIGN}\n  Nothing here answers that."
    assert count == "How many documents are there?\n  200 documents with 10 values."


def test_no_other_command_imports_the_sdk() -> None:
    script = "import sys, attend.cli.library, attend; assert 'mcp' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
