"""Where the project is, and the data sets beside it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"
