"""Dense, Normalize and Router as sentence-transformers keeps them in folders.

Class names are written in the form that its releases since 5.0 all read. A class that a file
names is never imported here: its last word says what the layer does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from attend.errors import Damaged, InvalidRequest
from attend.exchange import files
from attend.exchange.pair import UNIT, Layer, Pair, chained
from attend.types import Float32

NAMESPACE = "sentence_transformers.models."
ROUTER_CONFIG = "router_config.json"
IDENTITY = "torch.nn.modules.linear.Identity"
INPUT = "sentence_embedding"

# -- writing --------------------------------------------------------------------------------


def write_router(pair: Pair, folder: Path) -> None:
    """A Router with a route for queries and one for documents, in an empty folder."""
    structure = {
        "query": _write_route("query", pair.query, folder),
        "document": _write_route("document", pair.document, folder),
    }
    names = [name for route in structure.values() for name in route]
    config = {
        "types": {name: NAMESPACE + name.rpartition("_")[2] for name in names},
        "structure": structure,
        "parameters": {"default_route": "document", "allow_empty_key": True},
    }
    write_json(folder / ROUTER_CONFIG, config)


def _write_route(route: str, layer: Layer, folder: Path) -> list[str]:
    """The names of the folders written: a Dense, a Normalize or both."""
    names = []
    if layer.weight is not None:
        names.append(f"{route}_0_Dense")
        _write_dense(layer.weight, layer.bias, folder / names[-1])
    if layer.normalize or not names:
        # A route must not be empty; what arrives has length one, so that this changes nothing.
        names.append(f"{route}_{len(names)}_Normalize")
        (folder / names[-1]).mkdir()
        write_json(folder / names[-1] / "config.json", {})
    return names


def _write_dense(weight: Float32, bias: Float32 | None, folder: Path) -> None:
    folder.mkdir()
    config = {
        "in_features": weight.shape[1],
        "out_features": weight.shape[0],
        "bias": bias is not None,
        "activation_function": IDENTITY,
    }
    write_json(folder / "config.json", config)
    tensors = {"linear.weight": np.ascontiguousarray(weight)}
    if bias is not None:
        tensors["linear.bias"] = bias
    (folder / files.WEIGHTS).write_bytes(save(tensors, metadata={"format": "pt"}))


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


# -- reading --------------------------------------------------------------------------------


def read_router(folder: Path, after: Sequence[Layer], unit: bool) -> Pair:
    """The two routes of a Router's folder, each followed by what stands after the Router.

    Args:
        unit: the embeddings that arrive have length one.

    Raises:
        InvalidRequest: there is no route for queries or documents, or one does what no projection
            can.
    """
    config = files.read_object(folder / ROUTER_CONFIG)
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
        [_module(types.get(name), files.within(folder, name)) for name in structure[route]]
        for route in ("query", "document")
    )
    return Pair(chained([*query, *after], unit), chained([*document, *after], unit))


def read_layers(entries: Sequence[tuple[Any, Path]]) -> list[Layer]:
    """Modules by the class that a file names and the folder that holds them."""
    return [_module(type, path) for type, path in entries]


def _module(type: Any, path: Path) -> Layer:
    kind = kind_of(type)
    if kind == "Normalize":
        return UNIT
    if kind == "Dense":
        return read_dense(path)
    raise InvalidRequest(
        f"{path} is a {kind}; a projection has Dense layers and a Normalize at its end, and the "
        f"same encoder for both sides."
    )


def kind_of(type: Any) -> str:
    """The last word of a class's full name.

    >>> kind_of("sentence_transformers.models.Dense")
    'Dense'
    """
    return str(type).rpartition(".")[2]


def read_dense(folder: Path) -> Layer:
    """A Dense layer's folder: config.json and model.safetensors.

    Raises:
        InvalidRequest: it is not linear, reads something else than the embedding, or is a pickle.
        Damaged: config and weights disagree.
    """
    path = files.check_weights(folder)
    config = files.read_object(folder / "config.json")
    _check_linear(config, folder)
    tensors = files.read_tensors(path)
    _check_shapes(tensors, config, path)
    weight = tensors["linear.weight"]
    if config.get("use_residual"):
        # Where widths agree, what goes in is added to what comes out.
        extra = tensors.get("residual.weight", np.eye(len(weight), dtype=np.float32))
        weight = np.asarray(weight + extra, dtype=np.float32)
    return Layer(weight, tensors.get("linear.bias"), False)


def _check_linear(config: dict[str, Any], folder: Path) -> None:
    activation = config.get("activation_function")
    # Without one named, the library itself takes Tanh.
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
    """Raise Damaged unless the file holds what its config says, and no more."""
    out, taken = config.get("out_features"), config.get("in_features")
    expected: dict[str, tuple[Any, ...]] = {"linear.weight": (out, taken)}
    if config.get("bias", True):
        expected["linear.bias"] = (out,)
    if config.get("use_residual") and out != taken:
        expected["residual.weight"] = (out, taken)
    found = {name: tensor.shape for name, tensor in tensors.items()}
    if found != expected:
        raise Damaged(
            f"{path} holds {found}, but its config.json asks for {expected}; save the layer again."
        )
