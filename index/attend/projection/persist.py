"""Projections as bytes: safetensors, so that reading a file can run nothing.

The header is read here by hand because the library returns tensors without metadata;
the layout (eight bytes of little-endian length, then JSON) is the format's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from attend.errors import Damaged
from attend.types import Floats

FORMAT = 1
METADATA_KEY = "attend.projection"

SETTINGS: Mapping[str, type] = {
    "kind": str,
    "d_in": int,
    "normalize_queries": bool,
    "normalize_keys": bool,
    "folded": bool,
}
"""What a projection is beside its tensors."""


class Packed(NamedTuple):
    """What the bytes held."""

    tensors: dict[str, Floats]
    settings: dict[str, Any]


def pack(tensors: Mapping[str, Floats], settings: Mapping[str, Any]) -> bytes:
    """Tensors and settings as safetensors; equal input gives equal bytes.

    Weights are stored as float32: the embeddings they meet are no finer. Gates stay
    float64, for they must sum to one.
    """
    stored = {
        name: np.ascontiguousarray(tensor, np.float64 if name == "gates" else np.float32)
        for name, tensor in sorted(tensors.items())
    }
    # One entry only: the format keeps its metadata in no particular order, and the
    # fingerprint must not change from one process to the next.
    header = json.dumps({"format": FORMAT, **settings}, sort_keys=True)
    return save(stored, metadata={METADATA_KEY: header})


def unpack(data: bytes) -> Packed:
    """The inverse of `pack`; raises Damaged for bytes that are not a projection."""
    try:
        tensors = load(data)
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__") or {}
        settings = json.loads(metadata[METADATA_KEY])
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise Damaged(
            f"These {len(data)} bytes are not a saved projection ({error}); restore them "
            f"from a copy, or train again."
        ) from error
    if not isinstance(settings, dict) or settings.pop("format", None) != FORMAT:
        raise Damaged(
            f"The saved projection is not of format {FORMAT}, the one that is read here; "
            f"save it again with this version, or train again."
        )
    if {name: type(value) for name, value in settings.items()} != SETTINGS:
        raise Damaged(
            f"The saved projection says {settings}, but {', '.join(SETTINGS)} were expected; "
            f"save it again."
        )
    return Packed(tensors, settings)
