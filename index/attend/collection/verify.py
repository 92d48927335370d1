"""Verification: checks of a collection, and repairs of what can be made again."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attend.collection.collection import Collection
from attend.core.errors import Damaged
from attend.engines.engine import Finding
from attend.search.foreign import NOT_MADE
from attend.store.checks import RESTORE

ROUNDS = 3
"""Rounds of repairs: one repair may uncover another problem."""


@dataclass(frozen=True)
class Verified:
    """The result of a verification.

    Attributes:
        problems: as sentences.
        mended: whether there were problems, and repairs left none.
        findings: the problems with the invariants that they break.
        left: the problems after the repairs.
        hints: what searches lack, which is no problem of the stored data.
    """

    problems: list[str]
    keys: int
    mended: bool
    findings: list[Finding]
    left: list[str]
    hints: Sequence[str] = ()

    def json(self) -> dict[str, Any]:
        return {**vars(self), "findings": [finding._asdict() for finding in self.findings]}


def verify(collection: Collection, *, mend: bool = False) -> Verified:
    """Check the invariants of a collection, and compare every key of the indexes with the database.

    Args:
        mend: repair what can be made again from the database.
    """
    checks = collection.checks
    findings = left = checks.find()
    for _ in range(ROUNDS if mend else 0):
        names = {finding.check for finding in left if finding.can_mend}
        if not names:
            break
        checks.repair(names)
        left = checks.find()
    if mend and not left:
        collection.foreign.refresh()
    try:
        keys = collection.store.counts()[1]
    except sqlite3.DatabaseError:
        keys = 0
    return Verified(
        problems=[finding.problem for finding in findings],
        keys=keys,
        mended=bool(findings) and not left,
        findings=findings,
        left=[finding.problem for finding in left],
        hints=[] if left else [hint for hint in collection.info().hints or () if hint == NOT_MADE],
    )


def unopened(error: Damaged) -> Verified:
    """Return the result for a collection that cannot be opened."""
    finding = Finding("file", str(error), False, RESTORE)
    return Verified([finding.problem], 0, False, [finding], [finding.problem])


def together(reports: Mapping[str, Verified]) -> Verified:
    """Return the results for several collections as one, each problem with its collection."""
    problems = [f"{name}: {item}" for name, report in reports.items() for item in report.problems]
    left = [f"{name}: {item}" for name, report in reports.items() for item in report.left]
    return Verified(
        problems=problems,
        keys=sum(report.keys for report in reports.values()),
        mended=bool(problems) and not left,
        findings=[finding for report in reports.values() for finding in report.findings],
        left=left,
        hints=[f"{name}: {item}" for name, report in reports.items() for item in report.hints],
    )
