"""Import a Dense layer, a model with a Router, or a projection's bytes as a version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from attend.collection import Collection
from attend.errors import Damaged, EncoderMismatch, InvalidRequest
from attend.exchange import weights
from attend.exchange.export import SIMILARITY, encoder_folder
from attend.exchange.layers import UNIT, LayerPair, LinearLayer, chained, pair_of, projection_of
from attend.exchange.weights import ROUTER_CONFIG, kind_of, read_dense, read_layers, read_router
from attend.projection import Projection
from attend.settings import Settings

MODULES = "modules.json"
CONFIG = "config_sentence_transformers.json"

Sides: TypeAlias = Literal["both", "query", "document"]
"""The sides that the layers are for; the other side keeps the embedding."""


class Imported(NamedTuple):
    """The version that an import made.

    `encoder_checked`: true if the model came with the collection's encoder, false if that could
    not be compared, None if it came without an encoder.
    """

    version: int
    source: str
    dimensions: int
    active: bool
    encoder_checked: bool | None


class _SourceLayers(NamedTuple):
    source: str
    content: LayerPair | Projection
    encoder_checked: bool | None = None


def import_projection(
    collection: Collection, source: Path, *, sides: Sides = "both", activate: bool = False
) -> Imported:
    """Store the layers of `source` as a version of kind 'given'; it answers only if activated.

    Args:
        source: the folder of a Dense layer, of a Router or of a whole sentence-transformers model,
            or a projection's safetensors.
        sides: the sides that are taken from it: W_Q, W_K or both.

    Raises:
        InvalidRequest: it is a pickle, not linear, or of another width than the collection.
        EncoderMismatch: the model was made for another encoder.
        Damaged: a file is not in the format that its name says.
    """
    read = _read(source, collection.settings)
    projection = _taken(read.content, sides, collection.settings)
    note = {"imported": source.name, "source": read.source, "sides": sides}
    version = collection.add_projection(projection, note)
    if activate:
        collection.activate(version)
    return Imported(version, read.source, projection.d_k, activate, read.encoder_checked)


def _read(source: Path, settings: Settings) -> _SourceLayers:
    if source.is_file():
        return _SourceLayers("projection", _read_projection(source))
    if (source / MODULES).is_file():
        return _read_model(source, settings)
    unit, config = settings.unit_embeddings, source / "config.json"
    if (source / ROUTER_CONFIG).is_file():
        return _SourceLayers("Router", read_router(source, [], unit))
    if config.is_file() and "in_features" in weights.read_object(config):
        layer = chained([read_dense(source), *_default_end(settings)], unit)
        return _SourceLayers("Dense", LayerPair(layer, layer))
    pickled = [path for path in sorted(source.glob("*")) if path.suffix in weights.PICKLES]
    if pickled:
        raise weights.pickle_error(pickled[0])
    raise InvalidRequest(
        f"{source} has neither a Dense layer (config.json with in_features), nor a Router "
        f"({ROUTER_CONFIG}), nor a sentence-transformers model ({MODULES}); give one of these, or "
        f"a projection's safetensors."
    )


def _read_projection(file: Path) -> Projection:
    if file.suffix in weights.PICKLES:
        raise weights.pickle_error(file)
    weights.check_size(file, weights.MAX_WEIGHT_BYTES)
    try:
        return replace(Projection.from_bytes(file.read_bytes()).materialised(), kind="given")
    except Damaged as error:
        raise Damaged(
            f"{file} is not a projection's safetensors. For a layer of another library give the "
            f"folder that holds its config.json too. ({error})"
        ) from error


def _read_model(folder: Path, settings: Settings) -> _SourceLayers:
    """Read the layers after the encoder of a whole model."""
    entries = _entries(folder)
    kinds = [kind_of(type) for type, _ in entries]
    first, unit = _first_layer(kinds, folder), settings.unit_embeddings
    if kinds[first] == "Router":
        pair = read_router(entries[first][1], read_layers(entries[first + 1 :]), unit)
    else:
        layer = chained(read_layers(entries[first:]), unit)
        pair = LayerPair(layer, layer)
    pair = _as_compared(folder, pair, settings)
    if unit != ("Normalize" in kinds[max(first - 1, 0) : first]):
        _check_scale_free(folder, pair)
    checked = None
    if first > 0 and settings.encoder is not None:
        checked = _check_encoder(folder, settings.encoder)
    return _SourceLayers("model", pair, checked)


def _first_layer(kinds: Sequence[str], folder: Path) -> int:
    """Return the place after the encoder: the modules before a Router are the encoder's own."""
    for kind in ("Router", "Dense"):
        if kind in kinds:
            return kinds.index(kind)
    raise InvalidRequest(
        f"{folder} is a model of {', '.join(kinds) or 'no modules'} without a Dense layer or a "
        f"Router, and has nothing in it to import."
    )


def _check_scale_free(folder: Path, pair: LayerPair) -> None:
    """Raise InvalidRequest where a side's result depends on the length of its input."""
    for layer in pair:
        if layer.bias is not None or (layer.linear and not layer.normalize):
            raise InvalidRequest(
                f"The layers in {folder} take embeddings of another length than this collection's, "
                f"which would change their scores: only one of the two divides by the length. "
                f"Import the layer's own folder to use it all the same."
            )


def _entries(folder: Path) -> list[tuple[Any, Path]]:
    """Read the class and the folder of each module."""
    modules = weights.read_json(folder / MODULES)
    try:
        return [(entry["type"], weights.within(folder, entry["path"])) for entry in modules]
    except (TypeError, KeyError) as error:
        raise Damaged(
            f"{folder / MODULES} has no list of modules; save the model again."
        ) from error


def _as_compared(folder: Path, pair: LayerPair, settings: Settings) -> LayerPair:
    """Fit the pair to the model's similarity: a cosine is a dot product at length one."""
    config = weights.read_object(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    # The library compares by cosine where none is named.
    similarity = config.get("similarity_fn_name") or "cosine"
    ours = SIMILARITY[settings.scorer]
    if similarity == "cosine" and ours in ("cosine", "dot"):
        return LayerPair(*(_at_length_one(layer, settings) for layer in pair))
    if similarity != ours and {similarity, ours} != {"cosine", "dot"}:
        raise InvalidRequest(
            f"The model in {folder} compares by {similarity!r} and this collection by {ours!r} "
            f"(the scorer {settings.scorer!r}); import it into a collection with its scorer."
        )
    return pair


def _at_length_one(layer: LinearLayer, settings: Settings) -> LinearLayer:
    if layer.linear or not settings.unit_embeddings:
        return layer._replace(normalize=True)
    return layer


def _default_end(settings: Settings) -> list[LinearLayer]:
    """Return the end of a lone Dense layer: length one where scores are cosines."""
    return [UNIT] if settings.unit_embeddings or settings.scorer == "cosine" else []


def _taken(content: LayerPair | Projection, sides: Sides, settings: Settings) -> Projection:
    """Return a projection with these sides; the other one is that of an untrained collection."""
    if sides == "both" and isinstance(content, Projection):
        return content
    pair = content if isinstance(content, LayerPair) else pair_of(content)
    plain = chained(_default_end(settings), settings.unit_embeddings)
    if sides == "query":
        pair = pair._replace(document=plain)
    elif sides == "document":
        pair = pair._replace(query=plain)
    return projection_of(pair, settings.dimension)


# -- the encoder ----------------------------------------------------------------------------


def _check_encoder(folder: Path, name: str) -> bool:
    """Compare the weights of a model's first module with those of a collection's encoder.

    Returns: False where one of the two has no weights to compare.

    Raises:
        EncoderMismatch: they are of different models.
    """
    home = encoder_folder(name)
    ours, theirs = home and _first_weights(home), _first_weights(folder)
    if ours is None or theirs is None:
        return False
    shared, differing = _compared(ours, theirs)
    if differing:
        raise EncoderMismatch(
            f"{folder} has another encoder than the collection's {Path(name).name!r}: {differing} "
            f"of {shared} tensors differ. To use its layers all the same, import their own folder."
        )
    return shared > 0


def _first_weights(folder: Path) -> Path | None:
    """Return the weights of a model's first module."""
    if not (folder / MODULES).is_file():
        return None
    first = weights.within(folder, weights.read_json(folder / MODULES)[0]["path"])
    return first / weights.WEIGHTS if (first / weights.WEIGHTS).is_file() else None


def _compared(one: Path, other: Path) -> tuple[int, int]:
    """Count the tensors that both files have, and those among them that differ."""
    from safetensors import SafetensorError, safe_open

    def equal(name: str) -> bool:
        first, second = left.get_tensor(name), right.get_tensor(name)
        return first.shape == second.shape and bool((first == second).all())

    try:
        with safe_open(one, framework="pt") as left, safe_open(other, framework="pt") as right:
            shared = sorted(set(left.keys()) & set(right.keys()))
            differing = sum(not equal(name) for name in shared)
    except SafetensorError as error:
        raise Damaged(f"{one} or {other} is not safetensors ({error}); save it again.") from error
    return len(shared), differing
