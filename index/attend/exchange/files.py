"""Reading what came from outside: JSON and safetensors, within a size, from within a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from attend.errors import Damaged, InvalidRequest, LimitExceeded
from attend.types import Float32

MAX_JSON_BYTES = 1 << 20
"""A layer's settings have some hundred bytes."""

MAX_WEIGHT_BYTES = 1 << 30
"""Two matrices of 8,192 by 8,192 are half of it."""

PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"})
WEIGHTS = "model.safetensors"


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises Damaged where it is none."""
    check_size(path, MAX_JSON_BYTES)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is not JSON ({error}); save the model again.") from error


def read_object(path: Path) -> dict[str, Any]:
    """As `read_json`, for an object."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise Damaged(f"{path} holds a {type(found).__name__} where an object was expected.")
    return found


def read_tensors(path: Path) -> dict[str, Float32]:
    """Tensors by name, as float32 whatever they are stored as. Raises Damaged."""
    # Through torch: numpy has no bfloat16, in which layers are often trained.
    from safetensors.torch import load_file

    check_size(path, MAX_WEIGHT_BYTES)
    try:
        return {name: tensor.float().numpy() for name, tensor in load_file(path).items()}
    except (SafetensorError, ValueError, KeyError) as error:
        raise Damaged(f"{path} is not safetensors ({error}); save the model again.") from error


def check_size(path: Path, most: int) -> None:
    """Raise LimitExceeded for a file that is larger than anything meant."""
    size = path.stat().st_size
    if size > most:
        raise LimitExceeded(f"{path} has {size} bytes; at most {most} are read from such a file.")


def check_weights(folder: Path) -> Path:
    """The folder's safetensors. Raises InvalidRequest where it has a pickle instead, or neither."""
    if (folder / WEIGHTS).is_file():
        return folder / WEIGHTS
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if pickled:
        raise pickle_refused(folder / pickled[0])
    raise InvalidRequest(f"{folder} has no {WEIGHTS}; save the layer again with its weights.")


def pickle_refused(path: Path) -> InvalidRequest:
    """The error for weights that are a pickle."""
    return InvalidRequest(
        f"{path} is a pickle, and reading one can run anything; save the layer as {WEIGHTS} "
        f"(sentence-transformers does so with safe_serialization=True)."
    )


def within(folder: Path, name: Any) -> Path:
    """A path that a file names, inside the folder that holds it. Raises Damaged for any other."""
    path = (folder / str(name)).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise Damaged(
            f"{folder} names {name!r}, which lies outside of it; do not trust that model."
        )
    return path
