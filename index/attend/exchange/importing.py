"""In: a Dense layer, a model with a Router, or a projection's bytes become a version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from attend.collection import Collection
from attend.errors import Damaged, InvalidRequest
from attend.exchange import encoders, files
from attend.exchange.encoders import CONFIG, MODULES
from attend.exchange.exporting import SIMILARITY
from attend.exchange.modules import (
    ROUTER_CONFIG,
    kind_of,
    read_dense,
    read_layers,
    read_router,
)
from attend.exchange.pair import UNIT, Layer, Pair, chained, pair_of, projection_of
from attend.projection import Projection
from attend.settings import Settings

Sides: TypeAlias = Literal["both", "query", "document"]
"""What the layers are for; the other side keeps the embedding as it is."""


class Imported(NamedTuple):
    """The version made.

    `encoder_checked`: the model brought an encoder and it is the collection's; False where that
    could not be told; None where it brought none.
    """

    version: int
    source: str
    dimensions: int
    active: bool
    encoder_checked: bool | None


class _Read(NamedTuple):
    source: str
    content: Pair | Projection
    encoder_checked: bool | None = None


def import_projection(
    collection: Collection, source: Path, *, sides: Sides = "both", activate: bool = False
) -> Imported:
    """Store what `source` holds as a version of kind 'given'; it answers only if activated.

    Args:
        source: a Dense layer's folder, a Router's, a whole sentence-transformers model's, or a
            projection's safetensors.
        sides: which of W_Q and W_K is taken from it.

    Raises:
        InvalidRequest: it is a pickle, not linear, or of another width than the collection.
        EncoderMismatch: the model was made for another encoder.
        Damaged: it is not what it says it is.
    """
    read = _read(source, collection.settings)
    projection = _taken(read.content, sides, collection.settings)
    note = {"imported": source.name, "source": read.source, "sides": sides}
    version = collection.add_projection(projection, note)
    if activate:
        collection.activate(version)
    return Imported(version, read.source, projection.d_k, activate, read.encoder_checked)


def _read(source: Path, settings: Settings) -> _Read:
    if source.is_file():
        return _Read("projection", _read_projection(source))
    if (source / MODULES).is_file():
        return _read_model(source, settings)
    unit = settings.unit_embeddings
    if (source / ROUTER_CONFIG).is_file():
        return _Read("Router", read_router(source, [], unit))
    if (source / "config.json").is_file() and "in_features" in files.read_object(
        source / "config.json"
    ):
        layer = chained([read_dense(source), *_default_end(settings)], unit)
        return _Read("Dense", Pair(layer, layer))
    raise _nothing_known(source)


def _read_projection(file: Path) -> Projection:
    if file.suffix in files.PICKLES:
        raise files.pickle_refused(file)
    files.check_size(file, files.MAX_WEIGHT_BYTES)
    try:
        return replace(Projection.from_bytes(file.read_bytes()).materialised(), kind="given")
    except Damaged as error:
        raise Damaged(
            f"{file} is not a projection's safetensors. For a layer of another library give the "
            f"folder that holds its config.json too. ({error})"
        ) from error


def _nothing_known(source: Path) -> InvalidRequest:
    pickled = [path for path in sorted(source.glob("*")) if path.suffix in files.PICKLES]
    if pickled:
        return files.pickle_refused(pickled[0])
    return InvalidRequest(
        f"{source} has neither a Dense layer (config.json with in_features), nor a Router "
        f"({ROUTER_CONFIG}), nor a sentence-transformers model ({MODULES}); give one of these, or "
        f"a projection's safetensors."
    )


def _read_model(folder: Path, settings: Settings) -> _Read:
    """The layers after the encoder of a whole model."""
    entries = _entries(folder)
    kinds = [kind_of(type) for type, _ in entries]
    at, unit = _first_layer(kinds, folder), settings.unit_embeddings
    if kinds[at] == "Router":
        pair = read_router(entries[at][1], read_layers(entries[at + 1 :]), unit)
    else:
        layer = chained(read_layers(entries[at:]), unit)
        pair = Pair(layer, layer)
    pair = _as_compared(folder, pair, settings)
    if unit != ("Normalize" in kinds[max(at - 1, 0) : at]):
        _check_scale_free(folder, pair)
    checked = None
    if at > 0 and settings.encoder is not None:
        checked = encoders.check_same(folder, settings.encoder)
    return _Read("model", pair, checked)


def _first_layer(kinds: Sequence[str], folder: Path) -> int:
    """Where the encoder ends: what stands before a Router is the encoder's own."""
    for kind in ("Router", "Dense"):
        if kind in kinds:
            return kinds.index(kind)
    raise InvalidRequest(
        f"{folder} is a model of {', '.join(kinds) or 'nothing'}, without a Dense layer or a "
        f"Router; there is nothing in it to import."
    )


def _check_scale_free(folder: Path, pair: Pair) -> None:
    """Raise InvalidRequest where a side's result depends on the length of what comes in."""
    for layer in pair:
        if layer.bias is not None or (layer.linear and not layer.normalize):
            raise InvalidRequest(
                f"The layers in {folder} take embeddings of another length than this collection's, "
                f"which would change their scores: of the two, only one divides by the length. "
                f"Import the layer's own folder, if that is meant."
            )


def _entries(folder: Path) -> list[tuple[Any, Path]]:
    """Class and folder of each module."""
    modules = files.read_json(folder / MODULES)
    try:
        return [(each["type"], files.within(folder, each["path"])) for each in modules]
    except (TypeError, KeyError) as error:
        raise Damaged(
            f"{folder / MODULES} has no list of modules; save the model again."
        ) from error


def _as_compared(folder: Path, pair: Pair, settings: Settings) -> Pair:
    """The pair as the model's own similarity sees it: a cosine is a dot product at length one."""
    config = files.read_object(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    # Where none is named, that library compares by cosine.
    similarity = config.get("similarity_fn_name") or "cosine"
    ours = SIMILARITY[settings.scorer]
    if {similarity, ours} <= {"cosine", "dot"}:
        return (
            pair
            if similarity == "dot"
            else Pair(*(_at_length_one(each, settings) for each in pair))
        )
    if similarity != ours:
        raise InvalidRequest(
            f"The model in {folder} compares by {similarity!r} and this collection by {ours!r} "
            f"(the scorer {settings.scorer!r}); import it into a collection with its scorer."
        )
    return pair


def _at_length_one(layer: Layer, settings: Settings) -> Layer:
    if layer.linear or not settings.unit_embeddings:
        return layer._replace(normalize=True)
    return layer


def _default_end(settings: Settings) -> list[Layer]:
    """A lone Dense layer does not say: length one where the embeddings have it, so that scores
    stay cosines."""
    return [UNIT] if settings.unit_embeddings or settings.scorer == "cosine" else []


def _taken(content: Pair | Projection, sides: Sides, settings: Settings) -> Projection:
    """The sides asked for; the other one is what an untrained collection has."""
    if sides == "both" and isinstance(content, Projection):
        return content
    pair = content if isinstance(content, Pair) else pair_of(content)
    plain = chained(_default_end(settings), settings.unit_embeddings)
    if sides == "query":
        pair = pair._replace(document=plain)
    elif sides == "document":
        pair = pair._replace(query=plain)
    return projection_of(pair, settings.dimension)
