"""Folders of Markdown, HTML, PDF, Word and e-mail, and their front matter."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from email.message import EmailMessage
from io import BytesIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from docx import Document
from reportlab.pdfgen.canvas import Canvas

from attend.cli import main
from attend.core.errors import SourceError
from attend.source import Row, RowProblem, documents, guess, open_source, opening, sample
from attend.source.opening import front_matter

THINGS = ("whale", "ship", "harbour", "lighthouse", "storm", "sail", "anchor", "tide", "reef")


def words(number: int) -> str:
    return f"Chapter {number}: the {THINGS[number % len(THINGS)]} and the sea."


def pdf(text: str) -> bytes:
    stream = BytesIO()
    canvas = Canvas(stream)
    canvas.drawString(72, 720, text)
    canvas.save()
    return stream.getvalue()


def docx(text: str) -> bytes:
    stream, document = BytesIO(), Document()
    document.add_heading("A heading", 1)
    document.add_paragraph(text)
    document.save(stream)
    return stream.getvalue()


def email(text: str, kind: str = "plain") -> bytes:
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = "Sails", "a@b.example", "c@d.example"
    message["Date"] = "Thu, 29 Feb 2024 12:30:00 +0000"
    message.set_content(text, subtype=kind)
    message.add_attachment(b"x", maintype="image", subtype="png", filename="sail.png")
    return message.as_bytes()


def html(text: str) -> bytes:
    page = f"<title>Page</title><script>nothing()</script><body><h1>A page</h1><p>{text}</p></body>"
    return page.encode()


def rows_of(folder: Path) -> dict[str, Row | RowProblem]:
    return {row.place: row for row in open_source(folder).rows()}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Path:
    """A folder of 300 files, of which 18 are no documents or broken."""
    root = tmp_path_factory.mktemp("mixed")
    for number in range(156):
        tags = f"---\ntitle: Notes {number}\ntags: [sea, n{number}]\n---\n{words(number)}"
        (root / f"{number}.md").write_text(tags if number % 2 else f"# Plain\n{words(number)}")
    for number in range(70):
        (root / f"{number}.html").write_bytes(html(words(number)))
    for number in range(42):
        (root / f"{number}.pdf").write_bytes(pdf(words(number)))
    word = docx(words(0))  # a conversion takes a second
    for number in range(4):
        (root / f"{number}.docx").write_bytes(word)
    for number in range(10):
        (root / f"{number}.eml").write_bytes(email(words(number)))
    for number in range(10):
        (root / f"{number}.png").write_bytes(b"\x89PNG\r\n")
    (root / "table.csv").write_text("a,b\n1,2\n")
    (root / "Makefile").write_text("all:\n")
    for name in ("broken.pdf", "broken.docx", "empty.md", "binary.txt", "empty.html", "scan.pdf"):
        (root / name).write_bytes(b"\0\1\2" if name.startswith("b") else b"")
    (root / "scan.pdf").write_bytes(pdf(""))
    assert len(list(root.iterdir())) == 300
    return root


def test_a_folder_of_300_mixed_files_names_each_one_that_is_skipped(
    mixed, tmp_path, tiny_encoder_folder
):
    at = ["--data", str(tmp_path), "--encoder", str(tiny_encoder_folder)]
    result = CliRunner().invoke(main, ["build", str(mixed), *at, "--json"])
    built = json.loads(result.stdout)
    assert built["documents"] == 282
    skipped = {entry["file"]: entry["reason"] for entry in built["skipped"]}
    expected = {
        **{f"{number}.png": "Files ending in .png are not read" for number in range(10)},
        "table.csv": "Build it as a source of its own",
        "Makefile": "Files without an ending are not read",
        "broken.pdf": "cannot be read as .pdf",
        "broken.docx": "cannot be read as .docx",
        "empty.md": "The file is empty",
        "binary.txt": "is no text",
        "empty.html": "The file has no text",
        "scan.pdf": "Recognise the text of a scan",
    }
    assert skipped.keys() == expected.keys()
    assert {n: reason for n, reason in skipped.items() if expected[n] not in reason} == {}
    assert built["refused"] == 6
    assert "Files that were skipped: 18." in result.stderr
    assert all(name in result.stderr for name in expected)


def test_each_format_gives_its_text_title_and_fields(tmp_path):
    files = {
        "a.pdf": pdf("A whale."),
        "b.docx": docx("A ship."),
        "c.html": html("Café"),
        "d.eml": email("<p>Hello <b>sailor</b></p>", "html"),
        "e.eml": email("Plain text."),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    rows = {name: row.cells for name, row in rows_of(tmp_path).items()}
    assert {name: (cells["title"], cells["text"]) for name, cells in rows.items()} == {
        "a.pdf": ("a", "A whale."),
        "b.docx": ("A heading", "# A heading\n\nA ship."),
        "c.html": ("Page", "# A page\n\nCafé"),
        "d.eml": ("Sails", "Hello **sailor**"),
        "e.eml": ("Sails", "Plain text."),
    }
    assert {name: cell for name, cell in rows["e.eml"].items() if name not in ("text", "id")} == {
        "title": "Sails",
        "from": "a@b.example",
        "to": "c@d.example",
        "date": "2024-02-29T12:30:00+00:00",
        "attachments": ["sail.png"],
    }


def test_a_single_document_is_a_source(tmp_path):
    (tmp_path / "notes.md").write_text("# Ships\nA ship sails.")
    (row,) = open_source(tmp_path / "notes.md").rows()
    assert row == Row(
        "notes.md", {"id": "notes.md", "title": "Ships", "text": "# Ships\nA ship sails."}
    )


def test_without_the_extra_a_sentence_names_it(tmp_path, monkeypatch):
    (tmp_path / "a.md").write_text("words")
    (tmp_path / "b.pdf").write_bytes(pdf("A whale."))
    monkeypatch.setitem(sys.modules, "markitdown", None)
    opening.converter_of.cache_clear()
    opening.converted_file.cache_clear()
    problem = rows_of(tmp_path)["b.pdf"]
    opening.converter_of.cache_clear()
    assert "pip install 'attend-retrieval[documents]'" in problem.reason
    # The document may be indexed already: a build with --sync must not take it for deleted.
    assert (problem.rejects, problem.skips) == (True, True)


def test_a_document_that_takes_too_long_is_named(tmp_path, monkeypatch):
    """An HTML file of 60 kB, which Python's parser reads in quadratic time: within minutes."""
    monkeypatch.setattr(opening, "SECONDS", 0.3)
    (tmp_path / "a.html").write_bytes(b"<p>whale" + b'<a b="' * 10_000)
    (tmp_path / "b.html").write_bytes(html("A ship sails."))
    before = signal.getsignal(signal.SIGALRM)
    begun = time.monotonic()
    rows = rows_of(tmp_path)
    assert time.monotonic() - begun < 20
    assert "was not read within 1 s" in rows["a.html"].reason
    assert (rows["a.html"].rejects, rows["a.html"].skips) == (True, True)
    assert "A ship sails." in rows["b.html"].cells["text"]
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_front_matter_becomes_payload_and_is_no_text(tmp_path):
    (tmp_path / "a.md").write_text(
        "---\ntitle: Ships\ntags: [sea, sail]\ndate: 2024-02-29\nid: 7\nrate: .nan\n---\n\n"
        "# Heading\nA ship sails.\n"
    )
    source = open_source(tmp_path)
    (found,) = documents(source, guess(sample(source), source=source))
    assert found.item.fields == {"title": "Ships", "text": "\n# Heading\nA ship sails.\n"}
    assert found.item.id == "a.md"
    assert found.item.payload == {
        "tags": ["sea", "sail"],
        "date": "2024-02-29",
        "front_matter_id": 7,
        "rate": None,
    }


@pytest.mark.parametrize(
    "text",
    ["---\n", "text\n---\nmore\n---\n", "---\njust a rule\n---\nand text", "---\n- a\n---\nlist"],
)
def test_text_between_rules_is_no_front_matter(text):
    assert front_matter(text) == ({}, text)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [("title: a: b\n", "a.md:2"), ("a: 1\nb: [\n", "a.md:4"), ("a: &x 1\nb: *x\n", "alias")],
)
def test_front_matter_that_is_no_yaml_is_left_out_with_a_notice(tmp_path, lines, reason):
    (tmp_path / "a.md").write_text(f"---\n{lines}---\nA ship sails.")
    problem, row = open_source(tmp_path).rows()
    assert reason in str(problem)
    assert "Quote its texts" in problem.reason
    assert not problem.rejects
    assert row.cells["text"] == "A ship sails."


def test_a_latin_text_in_a_folder_is_read_by_its_encoding(tmp_path):
    text = "Über die Brücke läuft das Mädchen, hört Töne und trägt grüne Strümpfe für die Straße."
    (tmp_path / "a.txt").write_bytes(text.encode("cp1252"))
    assert rows_of(tmp_path)["a.txt"].cells["text"] == text


MBOX = b"""From ann@example.org Mon Jan  1 10:00:00 2024
From: Ann <ann@example.org>
Subject: A whale
Date: Mon, 01 Jan 2024 10:00:00 +0100
Message-ID: <1@example.org>

From here on nothing is a message, as no blank line is before it.
>From is written so within a text.

From here on, too, as there is no date.

From MAILER-DAEMON Tue Jan  2 11:00:00 2024
Subject: =?utf-8?b?R3LDvMOfZQ==?=
Content-Type: text/plain; charset=no-such-charset

words

From bob@example.org Wed Jan  3 12:00:00 2024
Subject: Ships

A ship sails.
"""


def test_each_message_of_a_mailbox_is_a_document(tmp_path):
    path = tmp_path / "list.mbox"
    path.write_bytes(MBOX)
    source = open_source(str(path))
    first, broken, last = source.rows()
    assert first == Row(
        "list.mbox:1",
        {
            "from": "Ann <ann@example.org>",
            "date": "2024-01-01T10:00:00+01:00",
            "id": "1@example.org",
            "title": "A whale",
            "text": "From here on nothing is a message, as no blank line is before it.\n"
            "From is written so within a text.\n\nFrom here on, too, as there is no date.",
        },
    )
    assert broken.place == "list.mbox:2"
    assert "The message cannot be read as .eml" in broken.reason
    assert (last.cells["id"], last.cells["title"], last.cells["text"]) == (
        "3",
        "Ships",
        "A ship sails.",
    )
    fields = guess(sample(source), source=source)
    assert (fields.id, fields.text) == ("id", ("title", "text"))
    path.write_bytes(MBOX.replace(b"\n", b"\r\n"))
    assert [row.place for row in open_source(str(path)).rows()] == [
        f"list.mbox:{number}" for number in (1, 2, 3)
    ]
    path.write_bytes(b"Dear all,\n\nFrom here on\n")
    with pytest.raises(SourceError, match="is no mbox: its first line is not 'From'"):
        open_source(str(path))


def test_a_mailbox_of_lines_that_almost_begin_messages_takes_no_time(tmp_path):
    path = tmp_path / "a.mbox"
    path.write_bytes(
        MBOX + b"\n" + b"\nFrom x " + b"1:" * 2_000_000 + b"\n" + b"\nFrom x\n" * 50_000
    )
    started = time.perf_counter()
    assert len(list(open_source(str(path)).rows())) == 3
    assert time.perf_counter() - started < 20


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("dump.sql", "Restore it (sqlite3 NEW.db < FILE.sql)"),
        ("man.1.gz", "Unpack it first."),
        ("sheet.xlsx", "Save its sheet as CSV."),
        ("feed.xml", "Write its items as JSON"),
    ],
)
def test_a_file_that_is_not_read_has_its_own_advice(tmp_path, name, advice):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(SourceError, match=re.escape(advice)):
        open_source(str(tmp_path / name))
