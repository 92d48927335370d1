"""Read layers that other libraries wrote: safetensors and JSON, within a size, inside a folder.

Reading runs no code: pickles are refused, and a class that a file names is never imported; the last
word of its name says which layer it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from attend.errors import Damaged, InvalidRequest, LimitExceeded
from attend.exchange.layers import UNIT, LayerPair, LinearLayer, chained
from attend.types import Float32

MAX_JSON_BYTES = 1 << 20
"""A layer's settings have some hundred bytes."""

MAX_WEIGHT_BYTES = 1 << 30
"""Two matrices of 8,192 by 8,192 are half of it."""

PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"})
WEIGHTS = "model.safetensors"
ROUTER_CONFIG = "router_config.json"
INPUT = "sentence_embedding"

# -- layers ---------------------------------------------------------------------------------


def read_router(folder: Path, after: Sequence[LinearLayer], unit: bool) -> LayerPair:
    """Read the two routes of a Router's folder, each followed by the layers after the Router.

    Args:
        unit: the embeddings have length one.

    Raises:
        InvalidRequest: a route for queries or documents is missing, or is not a projection.
    """
    config = read_object(folder / ROUTER_CONFIG)
    structure, types = config.get("structure"), config.get("types")
    if not isinstance(structure, dict) or not isinstance(types, dict):
        raise Damaged(f"{folder / ROUTER_CONFIG} has no 'structure' and 'types'; save it again.")
    missing = {"query", "document"} - structure.keys()
    if missing:
        raise InvalidRequest(
            f"The Router in {folder} has the routes {', '.join(map(str, structure)) or 'none'}; "
            f"'query' and 'document' are needed."
        )
    query, document = (
        [_module(types.get(name), within(folder, name)) for name in structure[route]]
        for route in ("query", "document")
    )
    return LayerPair(chained([*query, *after], unit), chained([*document, *after], unit))


def read_layers(entries: Sequence[tuple[Any, Path]]) -> list[LinearLayer]:
    """Read modules, each given by the class that a file names and by its folder."""
    return [_module(kind, path) for kind, path in entries]


def _module(type: Any, path: Path) -> LinearLayer:
    kind = kind_of(type)
    if kind == "Normalize":
        return UNIT
    if kind == "Dense":
        return read_dense(path)
    raise InvalidRequest(
        f"{path} is a {kind}; a projection has Dense layers and a Normalize at its end, after one "
        f"encoder for both sides."
    )


def kind_of(type: Any) -> str:
    """Return the last word of a class's full name.

    >>> kind_of("sentence_transformers.models.Dense")
    'Dense'
    """
    return str(type).rpartition(".")[2]


def read_dense(folder: Path) -> LinearLayer:
    """Read a Dense layer's folder: config.json and model.safetensors.

    Raises:
        InvalidRequest: it is not linear, reads something other than the embedding, or is a pickle.
        Damaged: config and weights disagree.
    """
    path = check_weights(folder)
    config = read_object(folder / "config.json")
    _check_linear(config, folder)
    tensors = read_tensors(path)
    _check_shapes(tensors, config, path)
    weight = tensors["linear.weight"]
    if config.get("use_residual"):
        # Where widths agree, the input is added to the output.
        extra = tensors.get("residual.weight", np.eye(len(weight), dtype=np.float32))
        weight = np.asarray(weight + extra, dtype=np.float32)
    return LinearLayer(weight, tensors.get("linear.bias"), False)


def _check_linear(config: dict[str, Any], folder: Path) -> None:
    activation = config.get("activation_function")
    # The library takes Tanh where none is named.
    if kind_of(activation) != "Identity":
        raise InvalidRequest(
            f"The Dense layer in {folder} applies {kind_of(activation or 'Tanh')}, but a "
            f"projection is linear; import a layer whose activation_function is torch.nn.Identity."
        )
    reads = config.get("module_input_name", INPUT), config.get("module_output_name") or INPUT
    if reads != (INPUT, INPUT):
        raise InvalidRequest(
            f"The Dense layer in {folder} goes from {reads[0]!r} to {reads[1]!r}; only one that "
            f"goes from {INPUT!r} to {INPUT!r} can be a projection."
        )


def _check_shapes(tensors: Mapping[str, Float32], config: Mapping[str, Any], path: Path) -> None:
    """Raise Damaged unless the file holds exactly the tensors that its config names."""
    out, taken = config.get("out_features"), config.get("in_features")
    expected: dict[str, tuple[Any, ...]] = {"linear.weight": (out, taken)}
    if config.get("bias", True):
        expected["linear.bias"] = (out,)
    if config.get("use_residual") and out != taken:
        expected["residual.weight"] = (out, taken)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes != expected:
        raise Damaged(
            f"{path} holds {shapes}, but its config.json asks for {expected}; save the layer again."
        )


# -- files ----------------------------------------------------------------------------------


def read_json(path: Path) -> Any:
    """Read a JSON file; raise Damaged for any other."""
    check_size(path, MAX_JSON_BYTES)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is not JSON ({error}); save the model again.") from error


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object; raise Damaged for any other."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise Damaged(f"{path} holds a {type(content).__name__} where an object was expected.")
    return content


def read_tensors(path: Path) -> dict[str, Float32]:
    """Read tensors by name, as float32 whatever their stored type; raise Damaged."""
    # By torch: layers are often trained in bfloat16, and numpy has no such type.
    from safetensors.torch import load_file

    check_size(path, MAX_WEIGHT_BYTES)
    try:
        return {name: tensor.float().numpy() for name, tensor in load_file(path).items()}
    except (SafetensorError, ValueError, KeyError) as error:
        raise Damaged(f"{path} is not safetensors ({error}); save the model again.") from error


def check_size(path: Path, most: int) -> None:
    """Raise LimitExceeded for a file that is too large to be a layer."""
    size = path.stat().st_size
    if size > most:
        raise LimitExceeded(f"{path} has {size} bytes; at most {most} are read from such a file.")


def check_weights(folder: Path) -> Path:
    """Return the folder's safetensors; raise InvalidRequest for a pickle or a missing file."""
    if (folder / WEIGHTS).is_file():
        return folder / WEIGHTS
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if pickled:
        raise pickle_error(folder / pickled[0])
    raise InvalidRequest(f"{folder} has no {WEIGHTS}; save the layer again with its weights.")


def pickle_error(path: Path) -> InvalidRequest:
    """Return the error for weights that are a pickle."""
    return InvalidRequest(
        f"{path} is a pickle, and reading it can run any code; save the layer as {WEIGHTS} "
        f"(sentence-transformers does so with safe_serialization=True)."
    )


def within(folder: Path, name: Any) -> Path:
    """Return a path that a file names; raise Damaged where it leads out of the file's folder."""
    path = (folder / str(name)).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise Damaged(
            f"{folder} names {name!r}, which lies outside of it; do not trust this model."
        )
    return path
