"""Trainings of these tests divide their questions once: twice costs as much again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attend.learning import ranking, ranking_model
from attend.learning.ranking_model import RECIPE
from tests.index.learning.planted import Planted


@pytest.fixture(autouse=True)
def _one_division(request, monkeypatch):
    if "held_out" not in request.node.nodeid:
        monkeypatch.setattr(ranking_model, "MOST_DIVISIONS", 1)


@pytest.fixture
def quick(monkeypatch):
    """A recipe of few steps."""
    monkeypatch.setattr(ranking, "RECIPE", replace(RECIPE, steps=(12, 12)))


@pytest.fixture
def small(tmp_path, quick):
    """A collection from which a quick training learns something."""
    planted = Planted(1, 100, 0.8, 0.05)
    collection = planted.collection(tmp_path)
    planted.teach(collection, 60)
    return planted, collection
