"""Export a version as a sentence-transformers model, or as the projection's own bytes, which an
import reads again: safetensors alone, so that reading runs no code."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attend.collection.collection import Collection
from attend.core.errors import Conflict, Damaged, EncoderError, InvalidRequest, LimitExceeded
from attend.encoder import load
from attend.encoder.loading import find
from attend.exchange.layers import LayerPair, LinearLayer, MissingPart, missing_parts, pair_of
from attend.keys.files import scratch_beside, sync_file, sync_folder, write_synced
from attend.projection import Projection
from attend.store import StoredVersion

SIMILARITY = {"dot": "dot", "cosine": "cosine", "laplace": "manhattan"}
"""Our scorers by the library's names; its manhattan is minus the distance, as our laplace is."""

WEIGHTS = "model.safetensors"

MAX_WEIGHT_BYTES = 1 << 30
"""Two matrices of 8,192 by 8,192 are half of it."""

TOLERANCE = 1e-4
"""Allowed difference of scores in float32, relative to the largest one above 1."""

TRIAL = ["What is this about?", "A short text.", "Another one, of a few more words than the first."]
TRIAL_DOCUMENTS = 5


class ModelExport(NamedTuple):
    """The folder written, and the difference of its scores from ours in float32."""

    version: int
    folder: Path
    dimensions: int
    similarity: str
    difference: float
    cannot_travel: list[MissingPart]


class Imported(NamedTuple):
    """The version that an import made."""

    version: int
    dimensions: int
    active: bool


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
    pair = pair_of(projection)
    similarity = SIMILARITY[collection.settings.scorer]
    missing = missing_parts(stored, projection, collection.store.example_count())
    _check_apart(folder, collection)
    with _new_folder(folder, force=force) as making:
        _save_model(encoder, pair, similarity, making)
        documents = collection.store.sample(TRIAL_DOCUMENTS)
        texts = [text for row in documents for text in row.fields.values() if text.strip()]
        difference = score_difference(making, encoder, projection.materialised(), TRIAL + texts)
        if not difference <= TOLERANCE:
            raise Conflict(
                f"The exported model scores otherwise than this version, by {difference:.2g} where "
                f"{TOLERANCE:g} is allowed, and was removed; check that the encoder {encoder!r} is "
                f"the one the collection was built with."
            )
        title = f"{collection.name}, projection {number}"
        card = _card(title, Path(encoder).name, pair, similarity, missing, difference)
        (making / "README.md").write_text(card, encoding="utf-8")
    width = projection.d_in if pair.query.weight is None else len(pair.query.weight)
    return ModelExport(number, folder, width, similarity, difference, missing)


def export_weights(
    collection: Collection, file: Path, *, version: int | None = None, force: bool = False
) -> WeightsExport:
    """Write the bytes of a version's projection, as they are stored (safetensors).

    Raises:
        Conflict: `file` exists, and `force` is not given.
    """
    number, stored, projection = _version(collection, version)
    _check_free(file, force=force)
    file.parent.mkdir(parents=True, exist_ok=True)
    with scratch_beside(file) as staging:
        write_synced(staging / file.name, stored.weights)
        (staging / file.name).replace(file)
    sync_folder(file.parent)
    missing = missing_parts(stored, projection, collection.store.example_count())
    return WeightsExport(number, file, projection.fingerprint, missing)


def import_projection(collection: Collection, file: Path, *, activate: bool = False) -> Imported:
    """Store the bytes that `export_weights` wrote as a version of kind 'given'.

    It answers only if activated.

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
    return Imported(version, projection.d_k, activate)


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


def _save_model(encoder: str, pair: LayerPair, similarity: str, folder: Path) -> None:
    """Save the encoder with a Router after it; the encoder's weights are copied byte for byte."""
    from sentence_transformers.sentence_transformer.modules import Normalize, Router

    model = _read_model(find(encoder).place)
    if not isinstance(model[-1], Normalize):
        model.append(Normalize())  # embeddings have length one here whatever the model does
    model.append(Router.for_query_document(_route(pair.query), _route(pair.document)))
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


def _card(
    title: str,
    encoder: str,
    pair: LayerPair,
    similarity: str,
    missing: Sequence[MissingPart],
    difference: float,
) -> str:
    """Write the README of an exported model: its use, and what it does not contain."""
    rows = [
        f"| {part.what} | {'yes' if part.in_use else 'no'} | {part.detail} |" for part in missing
    ]
    return CARD.format(
        title=title,
        encoder=encoder,
        query=_route_text(pair.query),
        document=_route_text(pair.document),
        similarity=similarity,
        missing="\n".join(rows),
        difference=difference,
        tolerance=TOLERANCE,
    )


def _route_text(layer: LinearLayer) -> str:
    if layer.weight is None:
        return "the embedding unchanged, at length one"
    width, dimension = layer.weight.shape
    bias = "with" if layer.bias is not None else "without"
    length = ", then length one" if layer.normalize else ""
    return f"Dense {dimension} → {width}, {bias} bias, no activation{length}"


CARD = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags:
- sentence-transformers
- sentence-similarity
- feature-extraction
---
# {title}

The encoder {encoder}, its weights unchanged, and after it a Router with one route for queries and \
one for documents, exported by Attend.

- query: {query}
- document: {document}
- similarity: {similarity}

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")
queries = model.encode_query(["a question"])
documents = model.encode_document(["a text", "another text"])
scores = model.similarity(queries, documents)
```

`encode` without a task embeds documents.

## Missing parts

| part of the version | in use there | |
|---|---|---|
{missing}

Where one of the first four is in use, the service ranks otherwise than this model does. A text \
longer than the encoder's window is several keys there; here its end is cut off.

## Exactness

Checked on export: scores differ from the collection's encoder in float32 under the same \
projection by at most {difference:.1e} (allowed: {tolerance:g}). A service that encodes in \
bfloat16 differs by that rounding too.
"""

# -- files ----------------------------------------------------------------------------------


@contextmanager
def _new_folder(target: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a folder to fill, which becomes `target` when the block ends without an error."""
    _check_free(target, force=force)
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch_beside(target) as staging:
        making, old = staging / "new", staging / "old"
        making.mkdir()
        yield making
        for path in sorted(making.rglob("*")):
            sync_folder(path) if path.is_dir() else sync_file(path)
        # A folder cannot take the name of another: the old one moves away first.
        if target.exists() or target.is_symlink():
            target.rename(old)
        try:
            making.rename(target)
        except OSError:
            if old.exists() or old.is_symlink():
                old.rename(target)
            raise
    sync_folder(target.parent)


def _check_free(target: Path, *, force: bool) -> None:
    """Raise Conflict unless `target` is absent, an empty folder, or may be replaced."""
    empty = target.is_dir() and not any(target.iterdir())
    if force or empty or not (target.exists() or target.is_symlink()):
        return
    raise Conflict(
        f"{target} exists; choose another name, or replace it and all it holds with --force."
    )


def _check_apart(folder: Path, collection: Collection) -> None:
    """Raise Conflict where replacing a folder would remove the database or the encoder."""
    target = folder.resolve()
    for home in (collection.folder.resolve(), encoder_folder(collection.settings.encoder or "")):
        if home is not None and (home.is_relative_to(target) or target.is_relative_to(home)):
            raise Conflict(f"{folder} and {home} lie one in the other; export to a folder apart.")
