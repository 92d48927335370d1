"""Trainings of these tests divide their questions once: twice costs as much again."""

from __future__ import annotations

import pytest

from attend.learning import ranking_model


@pytest.fixture(autouse=True)
def _one_division(request, monkeypatch):
    if "held_out" not in request.node.nodeid:
        monkeypatch.setattr(ranking_model, "MOST_DIVISIONS", 1)
