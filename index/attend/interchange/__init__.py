"""Interchange: a version's matrices to and from the files that other libraries read.

A learned pair goes out as a sentence-transformers model, or as the projection's own bytes; Dense
layers, such models and such bytes come in. All of it is safetensors and JSON: reading runs nothing.
"""

from __future__ import annotations

from attend.interchange.exporting import ModelExport, WeightsExport, export_model, export_weights
from attend.interchange.importing import Imported, Sides, import_projection
from attend.interchange.leftovers import Leftover

__all__ = [
    "Imported",
    "Leftover",
    "ModelExport",
    "Sides",
    "WeightsExport",
    "export_model",
    "export_weights",
    "import_projection",
]
