"""The code blocks of README.md and docs/, and how a printed output is compared with its block."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.places import ROOT

DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
    if "_build" not in path.parts
}
"""Every page by its path from the root of the project."""

SHELL, PYTHON, TYPESCRIPT = "sh", "python", "ts"
OUTPUTS = ("text", "json")
"""Languages of a block that shows what the block directly above it prints."""

TOLERANCE = 0.02
"""Numbers with a decimal point may differ by this much, or by this share: the encoder computes in
bfloat16 where the processor multiplies it. What is learned from that may differ by more: a remark
`<!-- within: 0.1 -->` above a block says by how much."""

_PIECE = re.compile(
    r"^```(?P<language>[^\n`]*)\n(?P<code>.*?)^```$|^<!-- (?P<remark>.*?)-->$", re.DOTALL | re.M
)
_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+")


@dataclass
class Block:
    """One block of a page.

    Attributes:
        line: the line of the page on which it begins.
        output: the text of the block below it, which shows what it prints.
        reason: why it is not run, from a remark `<!-- not run: … -->` above it.
        tolerance: by how much, or by which share, numbers of the output may differ.
    """

    language: str
    code: str
    line: int
    output: str | None = None
    reason: str | None = None
    tolerance: float = TOLERANCE

    @property
    def runs(self) -> bool:
        return self.language in (SHELL, PYTHON) and self.reason is None


def blocks(text: str) -> list[Block]:
    """Return the blocks of a page in order, each with the output that the page shows."""
    listed: list[Block] = []
    reason, tolerance, end = None, TOLERANCE, 0
    for piece in _PIECE.finditer(text):
        follows = not text[end : piece.start()].strip()
        end, line = piece.end(), text.count("\n", 0, piece.start()) + 1
        remark = piece["remark"]
        if remark is not None:
            kind, _, content = remark.partition(":")
            if kind == "not run":
                reason = content.strip()
            elif kind.strip() == "within":
                tolerance = float(content)
            elif kind == "run":
                listed.append(Block(SHELL, content, line))
            continue
        language, code = piece["language"], piece["code"]
        if follows and listed and language in OUTPUTS and listed[-1].runs and reason is None:
            listed[-1].output = code
            continue
        listed.append(Block(language, code, line, reason=reason, tolerance=tolerance))
        reason, tolerance = None, TOLERANCE
    return listed


def uses_library(text: str) -> bool:
    """Return whether a page starts with the library of the tutorial, by its `<!-- library -->`."""
    return "<!-- library -->" in text


def difference(expected: str, printed: str, tolerance: float = TOLERANCE) -> str | None:
    """Return a sentence if an output is not what a page shows, and None if it is.

    In the page `…` stands for any text within a line, and alone on its line for any lines.
    """
    lines = _lines(expected)
    pattern = "".join(_pattern(line) for line in lines)
    match = re.fullmatch(pattern, "".join(f"{line}\n" for line in _lines(printed)))
    shown = f"The page shows\n{expected}\nand the block prints\n{printed}"
    if match is None:
        return shown
    numbers = [float(number) for line in lines for number in _NUMBER.findall(line)]
    for number, group in zip(numbers, match.groups(), strict=True):
        if abs(number - float(group)) > tolerance * max(1.0, abs(number)):
            return f"{number} is {group} now. {shown}"
    return None


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.strip("\n").split("\n")]


def _pattern(line: str) -> str:
    """Return the regular expression of a line, with a group for each of its numbers."""
    if line == "…":
        return r"(?:[^\n]*\n)*?"
    return "".join(_pieces(line)) + "\n"


def _pieces(line: str) -> Iterator[str]:
    end = 0
    for number in _NUMBER.finditer(line):
        yield _literal(line[end : number.start()])
        yield r"(-?\d+(?:\.\d+)?(?:e-?\d+)?)"
        end = number.end()
    yield _literal(line[end:])


def _literal(text: str) -> str:
    return re.escape(text).replace("…", r"[^\n]*?")


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
