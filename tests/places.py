"""Where the project is, and the data sets beside it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = (ROOT / "index", ROOT / "service")
"""The folders that the packages lie in."""

DATA = ROOT.parent / "shared" / "data"
