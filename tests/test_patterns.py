"""Regular expressions take linear time: every one of the packages, on the worst text for it.

A pattern is found in the syntax trees. A new one without a row here fails, and so does a row whose
pattern is gone.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import pytest

from attend.api.base import NAME_PATTERN
from attend.store.words import letter_spans
from tests.places import ROOT

LENGTH = 100_000
SECONDS = 0.1
METHODS = ("match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")

NOT_INPUT = "not over input"


class Worst(NamedTuple):
    """Why a pattern takes linear time, and the parts of texts that come closest to more.

    Attributes:
        texts: each is repeated to 100,000 characters; `a|b|c` is a, many b, c.
    """

    reason: str
    texts: tuple[str, ...] = ()


ONE = "one class of characters"
RUN = "a run of one class, which nothing follows"
GROUPS = "tried at one place; groups of three begin with a sign"
ENDS = "classes that follow each other share no character, so that each has one end"
NAME = Worst("at most 64 characters", ("a", "a|-|!"))

PATTERNS = {
    "attend/api/base.py NAME_PATTERN": NAME,
    "attend/write/build.py (\\d{1,6})/(\\d{1,6})": Worst("at most 13 characters", ("1", "1/|1|")),
    "attend/collection/data.py _ADDRESS": Worst("tried at one place", ("a", "a://", "a|:|/")),
    "attend/engines/local.py LEFT_BEHIND": Worst("at most 24 characters", ("making-|a|",)),
    "attend/engines/local.py NAME_PATTERN": NAME,
    "attend_service/pages.py [\\s,;]+": Worst(RUN, (" ", " |,|a")),
    "attend_service/stories.py [^\\w\\s'-]+|\\n": Worst(RUN, (".", ".|\n|.")),
    "attend_milvus/filters.py [\ud800-\udfff]": Worst(ONE, ("\ud800", "a")),
    "attend_milvus/server.py //[^@/]*@": Worst(
        "a run ends where the next one begins", ("/", "//|a|", "//a", "//|a|/@")
    ),
    "attend_milvus/server.py [A-Za-z][A-Za-z0-9]{0,31}": Worst("at most 32 characters"),
    "attend_milvus/server.py pattern": Worst(f"{NOT_INPUT}: options of the command line"),
    "attend/exchange/backup.py NAME_PATTERN": NAME,
    "attend/connect/transport.py https?://[^/\\s]": Worst("at most 9 characters", ("h",)),
    "attend/connect/mteb.py [^A-Za-z0-9_-]": Worst(ONE, ("a", "é")),
    "attend/connect/haystack_filters.py DATE": Worst(
        f"{NOT_INPUT}: of programs; parts of fixed length, and one run to the end"
    ),
    "attend/core/frames.py _SURROGATE": Worst(ONE, ("\ud800", "a")),
    "attend_service/routes/dify.py NUMBER": Worst("at most 38 characters", ("1", "1.|1|")),
    "attend_service/routes/qdrant.py 0|[1-9][0-9]{0,19}": Worst("at most 20 characters", ("1",)),
    "attend_service/routes/qdrant.py UUID_FORM": Worst("36 characters", ("a", "0-")),
    "attend_service/routes/qdrant.py [^\\W_]+": Worst(RUN, ("a", "a_", "_")),
    "attend_service/routes/vector_stores.py [^A-Za-z0-9_]+": Worst(RUN, ("a", "-", "a-")),
    "attend_service/routes/vector_stores.py vsfb_(\\d{1,4})_(\\d{1,12})": Worst(
        "at most 22 characters", ("1", "vsfb_|1|")
    ),
    "attend/search/foreign.py _WORD": Worst(RUN, ("a", "a ", " ")),
    "attend/search/foreign.py _SENTENCE_END": Worst(
        "a run of blanks begins after a sign, once, and nothing follows it",
        (".| |a", ". ", "a ", "a| |a", "\n", ".|\n|a", " \n"),
    ),
    "attend/source/rows.py _NUMBER": Worst(ENDS, ("1", "1.|1|a", "1e|1|a", "-1", "1.1")),
    "attend/source/rows.py _POINT_GROUPS": Worst(GROUPS, ("1", "1|.111|a", "1,|1|a", "1|.111|.")),
    "attend/source/rows.py _COMMA_GROUPS": Worst(GROUPS, ("1", "1|,111|a", "1.|1|a", "1|,111|,")),
    "attend/source/rows.py _EITHER": Worst("at most 8 characters", ("1",)),
    "attend/source/rows.py _DATE": Worst(
        "a run of blanks between parts of fixed length", ("1", "1.1.1| |1", "1.1.1| |a")
    ),
    "attend/source/rows.py [^\\d,-]": Worst(ONE, ("1", "a")),
    "attend/source/rows.py [\\d.]+": Worst(RUN, ("1", "1.", "1|.|a")),
    "attend/source/columns.py _LINK": Worst(
        "tried at one place, and each part once", ("a", "a://|a| ", "www.|a| b", "data:| |a", "a.")
    ),
    "attend/source/files.py _CONTROL": Worst(ONE, ("\x01", "a")),
    "attend/source/opening.py _FROM": Worst(
        "tried at one place, of 200 bytes, with at most 60 and 40 characters between its parts",
        ("From |a|", "From | |a", "From a |1|", "From a |11:11 |", "From a 11:11|1 |"),
    ),
    "attend/source/opening.py _TABLE": Worst(
        "the command line's own argument; .db: is looked for once from left to right",
        ("a", ".db", "a|.db:|", "a.db:|\n|"),
    ),
    "attend/source/tables.py vec|embed": Worst("two words of fixed length", ("ve", "embe", "e")),
    "attend/store/filters.py _DAY_FIRST": Worst("parts of fixed length", ("1", "1.", "1.1.1")),
    "attend/store/checks.py SPACE": Worst(RUN, (" ", "a ", "a| |a")),
    "attend/store/checks.py _SIGN": Worst(
        "one or two characters", ("\\", '\\"', '"', "[", "a", '"|\\"|')
    ),
    "attend/store/words.py _UNSPACED": Worst(RUN, ("文", "ก", "กั", "文 ", "ก|ั|", "a")),
    "attend/store/words.py _LETTER": Worst(
        "a letter, and its marks, which begin no letter", ("文", "กั", "ก|ั|", "ั", "a")
    ),
    "attend/store/words.py _INNER": Worst(
        "one character, and at most three before and after it",
        ("aA", "A", "AAaa", "a.", "a_", "_", "1A"),
    ),
    "attend/store/words.py _IDENTIFIER": Worst(
        "parts begin with a sign that no part has", ("a", "a.", "a_|a|.", "a..", "1")
    ),
    "attend/store/words.py _PART": Worst(
        "three ways to read a run of capitals, each once",
        ("A", "A|A|a", "A|A|aa", "aA", "AAaa", "AAa", "1A"),
    ),
    "attend/store/words.py _FOREIGN": Worst(ONE, ("a", "文")),
    "attend/store/words.py _FOLDED": Worst(
        "marks end where another sign begins; else at most three characters",
        (
            *("\u0610", "\u0610|\u0610|a", "\u304b\u3099", "\u1100", "\u1100\u1161\u11a8"),
            *("\ufb00", "\uff76", "a"),
        ),
    ),
    "attend/learning/next_items.py SEPARATORS": Worst(ONE, (",", "a", "a,")),
    "attend/values/kinds.py [?#]": Worst(ONE, ("?", "a", "#?")),
    "attend_service/docstrings.py JoinedStr": Worst(f"{NOT_INPUT}: the program's docstrings"),
    "attend_service/app.py [\\w.-]{1,64}": Worst("at most 64 characters", ("a", "a| |")),
    "attend_service/context.py {(\\w+)}": Worst(f"{NOT_INPUT}: the program's paths"),
    "attend_service/cli.py (\\d{1,4})([hdw])": Worst("at most 5 characters", ("1",)),
    "attend_service/cli.py NAME_PATTERN": NAME,
    "attend_service/keys.py SHAPE": Worst(
        "as long as a key", ("attend_|a|", "attend_0123456789ab_|a|")
    ),
    "attend_service/keys.py [0-9a-f]{64}": Worst("64 characters", ("a",)),
    "attend_service/settings.py https?://(\\[[0-9a-f:]+\\]|[a-z0-9.-]+)(:\\d{1,5})?": Worst(
        ENDS, ("http://|a|", "http://[|:|", "http://[|a|]a", "http://a:|1|", "http://a|:1|")
    ),
}  # fmt: skip
"""By module, and the constant's name or the pattern as it is written."""

UNITS = ("a", "A", "1", " ", "\n", ".", ".1", "_a", "-", "\\", '"', "[", "aA", ". ", "文", "กั", "é")
"""Repeated, these are tried on each pattern as well."""


class Use(NamedTuple):
    pattern: str | bytes | re.Pattern[str] | re.Pattern[bytes]
    method: str
    flags: int = 0


def trees() -> Iterator[tuple[str, ast.Module]]:
    for top in ("index", "service"):
        for path in sorted((ROOT / top).rglob("*.py")):
            yield str(path.relative_to(ROOT / top)), ast.parse(path.read_text())


def is_of_re(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in ("compile", *METHODS)
    )


def module_of(path: str):
    return importlib.import_module(path.removesuffix(".py").replace("/", "."))


@cache
def uses() -> dict[str, list[Use]]:
    """Return how each pattern is used; those that are no constant expression have no use."""
    modules, found, compiled = dict(trees()), defaultdict(list), {}
    for path, tree in modules.items():
        assigned = {
            id(node.value): node.targets[0].id  # type: ignore[attr-defined]
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and is_of_re(node.value)
        }
        for node in filter(is_of_re, ast.walk(tree)):
            method, (first, *rest) = node.func.attr, node.args  # type: ignore[attr-defined]
            if method == "compile":
                compiled[assigned[id(node)]] = path  # a pattern has a name
                continue
            text = getattr(first, "value", getattr(first, "id", type(first).__name__))
            key = f"{path} {text}"
            if isinstance(first, ast.Constant):
                is_caseless = any("IGNORECASE" in ast.unparse(each) for each in rest)
                found[key].append(Use(text, method, re.IGNORECASE * is_caseless))
            elif text == "NAME_PATTERN":
                found[key].append(Use(NAME_PATTERN, method))
            else:
                found.setdefault(key, [])
    for tree in modules.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name, method = node.value.id, node.attr
                if name in compiled and method in METHODS:
                    path = compiled[name]
                    if PATTERNS.get(f"{path} {name}", NAME).reason.startswith(NOT_INPUT):
                        found.setdefault(f"{path} {name}", [])
                        continue
                    found[f"{path} {name}"].append(Use(getattr(module_of(path), name), method))
    return dict(found)


def long(text: str, length: int) -> str:
    """Return `a|b|c` as a, many b, c."""
    before, middle, after = text.split("|") if text.count("|") == 2 else ("", text, "")
    count = (length - len(before) - len(after)) // len(middle)
    return before + middle * count + after


def seconds(run: Callable[[], object]) -> float:
    """Return the processor time of the best of a few runs: a busy machine is no fault."""
    best = 9.0
    for _ in range(5):
        begun = time.thread_time()
        run()
        best = min(best, time.thread_time() - begun)
        if best < SECONDS / 2:
            break
    return best


def runner(use: Use, text: str) -> Callable[[], object]:
    pattern = re.compile(use.pattern, use.flags) if isinstance(use.pattern, str) else use.pattern
    assert isinstance(pattern, re.Pattern)
    subject = text.encode("utf-8", "surrogatepass") if isinstance(pattern.pattern, bytes) else text
    method = getattr(pattern, use.method)
    if use.method in ("sub", "subn"):
        return lambda: method(lambda match: "", subject)
    if use.method == "finditer":
        return lambda: deque(method(subject), maxlen=0)
    return lambda: method(subject)


def test_every_pattern_has_a_row_and_no_row_is_left_over() -> None:
    assert set(uses()) == set(PATTERNS)
    assert all(worst.reason for worst in PATTERNS.values())
    # By these, a pattern would not be seen.
    for path, tree in trees():
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.ImportFrom) and node.module in ("re", "regex")), path
            assert not (isinstance(node, ast.Import) and node.names[0].name == "regex"), path
            assert getattr(node, "value", None) != "python-re", path  # pydantic's are of Rust


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_takes_linear_time(name: str) -> None:
    for use in dict.fromkeys(uses()[name]):
        for text in (*PATTERNS[name].texts, *UNITS):
            took = seconds(runner(use, long(text, LENGTH)))
            assert took <= SECONDS, (name, use.method, text, took)
            # Quadratic, a tenth of it would take a hundredth of the time.
            if took > SECONDS / 3:
                assert took < 50 * seconds(runner(use, long(text, LENGTH // 10))), (name, text)


@pytest.mark.parametrize("text", ["ก", "กิ", "ก|ิ|", "文", "a"])
def test_letters_of_a_query_are_found_in_linear_time(text: str) -> None:
    marks = [chr(code) for code in range(0x0E34, 0x0E3B)]
    letters = [
        chr(code) + one + two
        for code in range(0x0E01, 0x0E2F)
        for one in marks
        for two in marks
    ]  # fmt: skip
    assert len(letters) > 2000
    assert seconds(lambda: letter_spans(long(text, LENGTH), letters)) <= SECONDS
