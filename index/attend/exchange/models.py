"""Export a version as a sentence-transformers model, or as the projection's own bytes, which an
import reads again: safetensors alone, so that reading runs no code.

For the model a projection is two functions of an embedding, one for each side: W x + b, then length
one. The Dense and Normalize layers of other libraries compute the same; they have neither several
heads nor anything that belongs to single keys. `missing_parts` lists what they cannot hold.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attend.collection.collection import Collection
from attend.collection.versions import Version
from attend.core.errors import Conflict, Damaged, EncoderError, InvalidRequest, LimitExceeded
from attend.core.types import Float32, Float64, Floats
from attend.encoder import load
from attend.encoder.loading import find
from attend.exchange.backup import placed
from attend.projection import Projection
from attend.search.queries import FeedbackReader
from attend.store import StoredVersion

SIMILARITY = {"dot": "dot", "cosine": "cosine", "laplace": "manhattan"}
"""Our scorers by the library's names; its manhattan is minus the distance, as our laplace is."""

WEIGHTS = "model.safetensors"

MAX_WEIGHT_BYTES = 1 << 30
"""Two matrices of 8,192 by 8,192 are half of it."""

TOLERANCE = 1e-4
"""Allowed difference of scores in float32, relative to the largest one above 1."""

CARD = Path(__file__).with_name("model_card.md")
"""The template of the README of an exported model."""

TRIAL = ["What is this about?", "A short text.", "Another one, of a few more words than the first."]
TRIAL_DOCUMENTS = 5


class LinearLayer(NamedTuple):
    """x -> W x + b, then divided by its length if `normalize`; no weight is the identity."""

    weight: Float32 | None  # (d_out, d_in)
    bias: Float32 | None  # (d_out,); none without a weight
    normalize: bool


class MissingPart(NamedTuple):
    """A part of a version that an export does not have; `in_use`: the version answers with it."""

    what: str
    in_use: bool
    detail: str

    def sentence(self) -> str:
        return f"{self.what}: {self.detail}"


class ModelExport(NamedTuple):
    """The folder written, and the difference of its scores from ours in float32."""

    version: int
    folder: Path
    dimensions: int
    similarity: str
    difference: float
    cannot_travel: list[MissingPart]


class WeightsExport(NamedTuple):
    """The file written, with the projection's own bytes."""

    version: int
    file: Path
    fingerprint: str
    cannot_travel: list[MissingPart]


def export_model(
    collection: Collection, folder: Path, *, version: int | None = None, force: bool = False
) -> ModelExport:
    """Write a version as a sentence-transformers model: the encoder, then a Router of two routes.

    Queries go through W_Q and documents through W_K, the centre folded into the biases. The
    library itself saves the model, as safetensors and JSON. The folder is loaded and its scores
    are compared with ours before it gets its name.

    Args:
        version: the active one if None.
        force: replace `folder` where it exists.

    Raises:
        InvalidRequest: the collection has no encoder, or several heads count.
        Conflict: `folder` exists, or the collection itself lies in it.
        EncoderMismatch: the encoder has another width than the projection.
    """
    encoder = collection.settings.encoder
    if encoder is None:
        raise InvalidRequest(
            f"The collection {collection.name!r} holds vectors and has no encoder to export; "
            f"export the projection alone with --safetensors."
        )
    number, stored, projection = _version(collection, version)
    query, document = layers_of(projection)
    similarity = SIMILARITY[collection.settings.scorer]
    missing = missing_parts(collection, number, stored, projection)
    # Replacing a folder must not remove the database or the encoder.
    target = folder.resolve()
    for home in (collection.folder.resolve(), encoder_folder(encoder)):
        if home is not None and (home.is_relative_to(target) or target.is_relative_to(home)):
            raise Conflict(f"{folder} and {home} lie one in the other; export to a folder apart.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with placed(folder, force=force, folder=True) as making:
        _save_model(encoder, (query, document), similarity, making)
        sample = collection.store.sample(TRIAL_DOCUMENTS)
        texts = [text for row in sample for text in row.fields.values() if text.strip()]
        difference = score_difference(making, encoder, projection.materialised(), TRIAL + texts)
        if not difference <= TOLERANCE:
            raise Conflict(
                f"The exported model scores otherwise than this version, by {difference:.2g} where "
                f"{TOLERANCE:g} is allowed, and was removed; check that the encoder {encoder!r} is "
                f"the one the collection was built with."
            )
        card = CARD.read_text(encoding="utf-8").format(
            title=f"{collection.name}, projection {number}",
            encoder=Path(encoder).name,
            query=_route_text(query),
            document=_route_text(document),
            similarity=similarity,
            missing="\n".join(
                f"| {part.what} | {'yes' if part.in_use else 'no'} | {part.detail} |"
                for part in missing
            ),
            difference=difference,
            tolerance=TOLERANCE,
        )
        (making / "README.md").write_text(card, encoding="utf-8")
    width = projection.d_in if query.weight is None else len(query.weight)
    return ModelExport(number, folder, width, similarity, difference, missing)


def export_weights(
    collection: Collection, file: Path, *, version: int | None = None, force: bool = False
) -> WeightsExport:
    """Write the bytes of a version's projection, as they are stored (safetensors).

    Raises:
        Conflict: `file` exists, and `force` is not given.
    """
    number, stored, projection = _version(collection, version)
    file.parent.mkdir(parents=True, exist_ok=True)
    with placed(file, force=force) as path:
        path.write_bytes(stored.weights)
    missing = missing_parts(collection, number, stored, projection)
    return WeightsExport(number, file, projection.fingerprint, missing)


def import_projection(
    collection: Collection, file: Path, *, activate: bool = False
) -> tuple[int, int]:
    """Store the bytes that `export_weights` wrote as a version of kind 'given'.

    It answers only if activated.

    Returns: (its number, its dimensions).

    Raises:
        InvalidRequest: its width is not that of the collection's embeddings.
        Damaged: the file is no projection's safetensors.
        LimitExceeded: it is larger than 1 GiB.
    """
    size = file.stat().st_size
    if size > MAX_WEIGHT_BYTES:
        raise LimitExceeded(f"{file} has {size:,} bytes; at most {MAX_WEIGHT_BYTES:,} are read.")
    try:
        projection = Projection.from_bytes(file.read_bytes()).materialised()
    except Damaged as error:
        raise Damaged(
            f"{file} is not a projection's safetensors, which `attend export --safetensors` "
            f"writes. ({error})"
        ) from error
    note = {"imported": file.name}
    version = collection.add_projection(replace(projection, kind="given"), note)
    if activate:
        collection.activate(version)
    return version, projection.d_k


def encoder_folder(name: str) -> Path | None:
    """Return the folder of an encoder; None where the library finds it by its name."""
    place = Path(find(name).place)
    return place if place.is_dir() else None


def score_difference(
    folder: Path, encoder: str, projection: Projection, texts: Sequence[str]
) -> float:
    """Return the largest difference between the exported model's scores and ours, in float32.

    Every text is scored as a query against every text as a document, by inner product.
    """
    model, ours = _read_model(str(folder)).float(), load(encoder, precision="float32")
    theirs = model.encode_query(texts, show_progress_bar=False) @ (
        model.encode_document(texts, show_progress_bar=False).T
    )
    head = int(projection.gates.argmax())
    queries = projection.queries(ours.encode_queries(texts))[:, head]
    keys = projection.keys(ours.encode_documents(texts))  # (n, 1 or H, d)
    expected = queries @ keys[:, min(head, keys.shape[1] - 1)].T
    return float(np.abs(theirs - expected).max() / max(1.0, np.abs(expected).max()))


def _version(collection: Collection, version: int | None) -> tuple[int, StoredVersion, Projection]:
    number = collection.store.state().projection if version is None else version
    stored = collection.store.version(number)
    if stored.role == "predict":
        raise InvalidRequest(
            f"Version {number} predicts what users think of documents and is not a projection; "
            f"name another version. A backup contains it.",
            field="projection",
        )
    return number, stored, Projection.from_bytes(stored.weights)


# -- the model ------------------------------------------------------------------------------


def _save_model(
    encoder: str, layers: tuple[LinearLayer, LinearLayer], similarity: str, folder: Path
) -> None:
    """Save the encoder with a Router after it; the encoder's weights are copied byte for byte."""
    from sentence_transformers.sentence_transformer.modules import Normalize, Router

    model = _read_model(find(encoder).place)
    if not isinstance(model[-1], Normalize):
        model.append(Normalize())  # embeddings have length one here whatever the model does
    query, document = map(_route, layers)
    model.append(Router.for_query_document(query, document))
    model.similarity_fn_name = similarity
    model.save_pretrained(str(folder), create_model_card=False)
    home = encoder_folder(encoder)
    for name in (WEIGHTS, "LICENSE"):
        if home is not None and (home / name).is_file():
            shutil.copyfile(home / name, folder / name)


def _route(layer: LinearLayer) -> list[Any]:
    """Make the modules of one route: a Dense, a Normalize or both."""
    import torch
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize

    modules: list[Any] = []
    if layer.weight is not None:
        width, dimension = layer.weight.shape
        dense = Dense(
            dimension,
            width,
            bias=layer.bias is not None,
            activation_function=torch.nn.Identity(),
            init_weight=torch.from_numpy(np.ascontiguousarray(layer.weight)),
            init_bias=None if layer.bias is None else torch.from_numpy(layer.bias),
        )
        modules.append(dense)
    # A route must not be empty; what arrives has length one, and Normalize changes nothing.
    return [*modules, Normalize()] if layer.normalize or not modules else modules


def _read_model(place: str) -> Any:
    """Read a model as the library does, offline. Raise EncoderError."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Seconds to import: no other command waits for it.
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        return SentenceTransformer(
            place, device="cpu", local_files_only=True, model_kwargs={"use_safetensors": True}
        )
    except Exception as error:
        raise EncoderError(f"sentence-transformers cannot read {place} ({error}).") from error


# -- the card -------------------------------------------------------------------------------


def _route_text(layer: LinearLayer) -> str:
    if layer.weight is None:
        return "the embedding unchanged, at length one"
    width, dimension = layer.weight.shape
    bias = "with" if layer.bias is not None else "without"
    length = ", then length one" if layer.normalize else ""
    return f"Dense {dimension} → {width}, {bias} bias, no activation{length}"


# -- layers ----------------------------------------------------------------------------------


def layers_of(projection: Projection) -> tuple[LinearLayer, LinearLayer]:
    """Return the layers after the encoder, for queries and for documents.

    The centre is folded into their biases. Raise InvalidRequest where several heads count: the
    answer mixes one softmax of each (Vaswani et al. 2017), and no single inner product gives the
    logarithm of a mixture.
    """
    heads = np.flatnonzero(projection.gates)
    if len(heads) > 1:
        raise InvalidRequest(
            f"This version mixes the softmaxes of {len(heads)} heads, and no inner "
            f"product of two layers ranks as such a mixture does. Choose a version of one head, or "
            f"export its own bytes with --safetensors.",
            field="projection",
        )
    head = int(heads[0])
    return (
        _side(projection, "q", head, projection.normalize_queries),
        _side(projection, "k", head, projection.normalize_keys),
    )


def _side(projection: Projection, side: str, head: int, normalize: bool) -> LinearLayer:
    """Return one side, computed in float64, in float32: the precision of embeddings."""
    w, b = projection.tensors.get(f"w_{side}"), projection.tensors.get(f"b_{side}")
    center = projection.center
    if w is None and b is None and center is None:
        return LinearLayer(None, None, normalize)
    weight = np.eye(projection.d_in) if w is None else _of_head(w, head)
    bias = np.zeros(len(weight)) if b is None else _of_head(b, head)
    if center is not None:
        bias = bias - weight @ center  # W (x - c) + b = W x + (b - W c)
    has_bias = b is not None or center is not None
    narrow = bias.astype(np.float32) if has_bias else None
    return LinearLayer(weight.astype(np.float32), narrow, normalize)


def _of_head(tensors: Floats, head: int) -> Float64:
    """Return one head's matrix or bias; one that all heads share is stored once."""
    return np.asarray(tensors[min(head, len(tensors) - 1)], dtype=np.float64)


MISSING = {
    "key offsets": ("none", "they belong to stored keys, and a model sees only a text"),
    "terms of documents": ("none", "they are learned for each document, not for its text"),
    "example keys": (
        "not used",
        "they are rows of the collection, and no function of a document's text",
    ),
    "lexical bias": ("not used", "BM25 needs the words of the whole collection"),
    "feedback": ("not used", "where to depends on the examples of the collection"),
    "votes of feedback": (
        "not used",
        "they are for documents that examples of the collection name",
    ),
    "query encoder": ("as it was", "the model has one encoder for queries and documents"),
    "second layer": ("not used", "it asks again by what the best documents say"),
    "scale": (
        "not fitted",
        "it changes weights and no ranking: multiply the scores by it before a softmax",
    ),
    "no-answer score": (
        "not fitted",
        "add it as one more logit to allow the answer 'no document'",
    ),
    "value matrices and additive scorer": (
        "none",
        "they apply to values or pairs, not to one embedding",
    ),
}
"""Parts of a version that two layers cannot hold: the word for one that is not in use, and why."""


def missing_parts(
    collection: Collection, number: int, stored: StoredVersion, projection: Projection
) -> list[MissingPart]:
    """List all that two layers do not contain, used by this version or not, with figures.

    An untrained version uses what searches use before a training.
    """
    store, words = collection.store, collection.settings.encoder is not None
    version = Version.of(number, stored, collection.settings.scorer, words=words)
    strength = FeedbackReader(store, collection.encoder).strength(version, store.state().change)
    tuning, count = version.tuning, store.example_count()
    offsets = len(stored.offsets[0])
    terms = sum(len(rows) for rows, _ in stored.terms.values())
    others = [n for n in projection.tensors if n[:3] in ("w_v", "b_v", "w_o", "b_o", "add")]
    null = _fitted(tuning.null)
    if tuning.levels:
        behind = "times the mean logits of the documents ranked 2 to 10 and 11 to 100"
        null = f"{null}, plus {_fitted(tuning.levels)} {behind}"
    figures = {
        "key offsets": (offsets > 0, f"{offsets} keys are moved"),
        "terms of documents": (terms > 0, f"{terms}"),
        "example keys": (
            tuning.examples > 0 and count > 0,
            f"{count}, at the factor {tuning.examples:g}",
        ),
        "lexical bias": (
            tuning.lexical > 0,
            f"weight {tuning.lexical:g}, coverage {tuning.coverage:g}",
        ),
        "feedback": (strength > 0 and count > 0, f"queries move by {strength:g}"),
        "votes of feedback": (
            strength > 0 and tuning.votes > 0 and count > 0,
            f"weight {tuning.votes:g}",
        ),
        "query encoder": (projection.deep is not None, "its layers have a learned change"),
        "second layer": (tuning.layer > 0, f"share {tuning.layer:g}"),
        "scale": (tuning.scale is not None, _fitted(tuning.scale)),
        "no-answer score": (tuning.null is not None, null),
        "value matrices and additive scorer": (bool(others), ", ".join(others)),
    }
    parts = []
    for what, (absent, reason) in MISSING.items():
        in_use, figure = figures[what]
        parts.append(MissingPart(what, in_use, f"{figure if in_use else absent}; {reason}"))
    return parts


def _fitted(numbers: tuple[float, ...] | None) -> str:
    return ", ".join(f"{number:.6g}" for number in numbers or ())
