"""Out: a version as a sentence-transformers model, or as its own bytes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from attend.collection import Collection
from attend.errors import Conflict, InvalidRequest
from attend.exchange import encoders
from attend.exchange.card import Facts, card
from attend.exchange.encoders import TOLERANCE
from attend.exchange.leftovers import Leftover, leftovers
from attend.exchange.modules import write_router
from attend.exchange.pair import Pair, pair_of
from attend.exchange.publishing import new_folder, write_file
from attend.projection import Projection
from attend.store import StoredVersion
from attend.tuning import Tuning

SIMILARITY = {"dot": "dot", "cosine": "cosine", "laplace": "manhattan"}
"""Our scorers by that library's names; its manhattan is minus the distance, as our laplace is."""

TRIAL = ["What is this about?", "A short text.", "Another one, of a few more words than the first."]
TRIAL_DOCUMENTS = 5


class ModelExport(NamedTuple):
    """What was written: the folder, and how far its scores are from ours in float32."""

    version: int
    folder: Path
    dimensions: int
    similarity: str
    difference: float
    cannot_travel: list[Leftover]


class WeightsExport(NamedTuple):
    """What was written: one file with the projection's own bytes."""

    version: int
    file: Path
    fingerprint: str
    cannot_travel: list[Leftover]


class _Found(NamedTuple):
    version: int
    stored: StoredVersion
    projection: Projection
    left: list[Leftover]


def export_model(
    collection: Collection, folder: Path, *, version: int | None = None, force: bool = False
) -> ModelExport:
    """Write a version as a sentence-transformers model: the encoder, then a Router of two routes.

    Queries go through W_Q and documents through W_K, the centre folded into the biases. The
    encoder's weights are copied byte for byte, everything else is safetensors and JSON. The folder
    is loaded and compared before it gets its name.

    Args:
        version: the active one where not given.
        force: replace what is at `folder`.

    Raises:
        InvalidRequest: the collection has no encoder, or several heads count.
        Conflict: something is at `folder`, or the collection itself lies in it.
        EncoderMismatch: the encoder has not the width that the projection takes.
    """
    encoder = _encoder_of(collection)
    found = _find(collection, version)
    pair = pair_of(found.projection)
    similarity = SIMILARITY[collection.settings.scorer]
    _check_apart(folder, collection)
    with new_folder(folder, force=force) as making:
        encoders.copy_encoder(encoder, making)
        write_router(pair, encoders.add_modules(making, similarity))
        difference = _checked(making, encoder, found.projection, collection)
        facts = Facts(
            collection.name, found.version, Path(encoder).name, similarity, difference, TOLERANCE
        )
        (making / "README.md").write_text(card(pair, facts, found.left), encoding="utf-8")
    return ModelExport(
        found.version, folder, _width(pair, found.projection), similarity, difference, found.left
    )


def export_weights(
    collection: Collection, file: Path, *, version: int | None = None, force: bool = False
) -> WeightsExport:
    """Write the bytes of a version's projection, as they are stored (safetensors).

    Raises:
        Conflict: something is at `file`, unless `force` replaces it.
    """
    found = _find(collection, version)
    write_file(file, found.stored.weights, force=force)
    return WeightsExport(found.version, file, found.projection.fingerprint, found.left)


def _find(collection: Collection, version: int | None) -> _Found:
    number = collection.store.state().projection if version is None else version
    stored = collection.store.version(number)
    if stored.role == "predict":
        raise InvalidRequest(
            f"Version {number} predicts what users think of documents, and is no projection to "
            f"export; name another. A snapshot takes it along.",
            field="projection",
        )
    projection = Projection.from_bytes(stored.weights)
    left = leftovers(
        projection,
        Tuning.of(stored.tuning),
        offsets=len(stored.offsets[0]),
        examples=collection.store.example_count(),
    )
    return _Found(number, stored, projection, left)


def _encoder_of(collection: Collection) -> str:
    if collection.settings.encoder is None:
        raise InvalidRequest(
            f"The collection {collection.name!r} was made for vectors, so that there is no encoder "
            f"to export; take the projection alone with --safetensors."
        )
    return collection.settings.encoder


def _check_apart(folder: Path, collection: Collection) -> None:
    """Replacing a folder must not take the database or the encoder along."""
    target = folder.resolve()
    home = encoders.folder_of(collection.settings.encoder or "")
    for kept in (collection.folder.resolve(), home):
        if kept is not None and (kept.is_relative_to(target) or target.is_relative_to(kept)):
            raise Conflict(f"{folder} and {kept} lie one in the other; export to a folder apart.")


def _checked(making: Path, encoder: str, projection: Projection, collection: Collection) -> float:
    """The difference of scores. Raises Conflict where it is too large to call the export one."""
    documents = collection.store.sample(TRIAL_DOCUMENTS)
    texts = [text for each in documents for text in each.fields.values() if text.strip()]
    difference = encoders.difference(making, encoder, projection.materialised(), TRIAL + texts)
    if not difference <= TOLERANCE:
        raise Conflict(
            f"The model written scores otherwise than this version, by {difference:.2g} where "
            f"{TOLERANCE:g} is allowed, and was removed; check that the encoder {encoder!r} is the "
            f"one the collection was built with."
        )
    return difference


def _width(pair: Pair, projection: Projection) -> int:
    return projection.d_in if pair.query.weight is None else len(pair.query.weight)
