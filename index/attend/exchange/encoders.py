"""The encoder's own files: copied as they are, and compared with those of a model brought in."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from attend.encoder import load
from attend.encoder.loading import find
from attend.errors import Damaged, EncoderError, EncoderMismatch
from attend.exchange import files
from attend.exchange.modules import NAMESPACE, kind_of, write_json
from attend.projection import Projection
from attend.types import Float32

MODULES = "modules.json"
CONFIG = "config_sentence_transformers.json"

KEPT = frozenset({".json", ".safetensors", ".txt", ".model", ".jinja"})
"""Settings, weights and vocabularies. Pickles, code and other frameworks' weights stay behind."""

TOLERANCE = 1e-4
"""Of scores in float32, relative to the largest one above 1."""


def copy_encoder(name: str, target: Path) -> None:
    """The encoder as a sentence-transformers model in an empty folder, weights byte for byte.

    A model without such a folder, or with weights that are pickles, the library reads and saves.
    """
    folder = folder_of(name)
    if folder is None or not (folder / MODULES).is_file() or _pickled(folder):
        _saved_by_library(name, target)
        return
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden and (path.suffix in KEPT or path.name == "LICENSE"):
            copy = target / path.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def folder_of(name: str) -> Path | None:
    """The folder of an encoder; None where the library finds it by its name."""
    place = Path(find(name).place)
    return place if place.is_dir() else None


def _pickled(folder: Path) -> bool:
    """Whether some module has no weights but a pickle."""
    return any(
        not any(path.parent.glob("*.safetensors")) for path in folder.rglob("pytorch_model*.bin")
    )


def _saved_by_library(name: str, target: Path) -> None:
    model = read_model(find(name).place)
    model.save_pretrained(str(target), create_model_card=False, safe_serialization=True)


def read_model(place: str) -> Any:
    """A model as the library itself reads it, offline. Raises EncoderError."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Seconds to import: no command but these waits for it.
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        return SentenceTransformer(
            place, device="cpu", local_files_only=True, model_kwargs={"use_safetensors": True}
        )
    except Exception as error:
        raise EncoderError(f"sentence-transformers cannot read {place} ({error}).") from error


def add_modules(target: Path, similarity: str) -> Path:
    """Enter a Router after the encoder's own modules, and name the similarity.

    Returns: the folder that the Router's files belong in.
    """
    modules = files.read_json(target / MODULES)
    if kind_of(modules[-1]["type"]) != "Normalize":
        # Embeddings have length one here whatever the model does.
        _enter(target, modules, "Normalize")
        write_json(target / modules[-1]["path"] / "config.json", {})
    _enter(target, modules, "Router")
    write_json(target / MODULES, modules)
    config = files.read_object(target / CONFIG) if (target / CONFIG).is_file() else {}
    write_json(target / CONFIG, config | {"similarity_fn_name": similarity})
    return target / str(modules[-1]["path"])


def _enter(target: Path, modules: list[dict[str, Any]], kind: str) -> None:
    at = len(modules)
    modules.append({"idx": at, "name": str(at), "path": f"{at}_{kind}", "type": NAMESPACE + kind})
    (target / f"{at}_{kind}").mkdir()


def difference(folder: Path, name: str, projection: Projection, texts: list[str]) -> float:
    """The largest difference between the exported model's scores and ours, both in float32.

    Every text is scored as a query against every text as a document, by inner product.
    """
    model, encoder = read_model(str(folder)).float(), load(name, precision="float32")
    theirs = model.encode_query(texts, show_progress_bar=False) @ (
        model.encode_document(texts, show_progress_bar=False).T
    )
    queries, keys = encoder.encode_queries(texts), encoder.encode_documents(texts)
    ours = _scores(projection, queries, keys)
    return float(abs(theirs - ours).max() / max(1.0, abs(ours).max()))


def _scores(projection: Projection, queries: Float32, keys: Float32) -> Float32:
    """(n, d), (m, d) -> (n, m), under the head that counts."""
    head = int(projection.gates.argmax())
    asked, held = projection.queries(queries)[:, head], projection.keys(keys)
    return np.asarray(asked @ held[:, min(head, held.shape[1] - 1)].T, dtype=np.float32)


def check_same(folder: Path, name: str) -> bool:
    """Whether a model in a folder begins with the weights of a collection's encoder.

    Returns: False where that cannot be told, for want of weights to compare.

    Raises:
        EncoderMismatch: they are of different models.
    """
    home = folder_of(name)
    ours, theirs = home and _first_weights(home), _first_weights(folder)
    if ours is None or theirs is None:
        return False
    shared, differing = _compared(ours, theirs)
    if differing:
        raise EncoderMismatch(
            f"{folder} has another encoder than the collection's {Path(name).name!r}: {differing} "
            f"of {shared} tensors differ. Import its layers alone, by the folder they are in, if "
            f"they are meant for this encoder all the same."
        )
    return shared > 0


def _first_weights(folder: Path) -> Path | None:
    """The weights of a model's first module."""
    if not (folder / MODULES).is_file():
        return None
    first = files.within(folder, files.read_json(folder / MODULES)[0]["path"])
    return first / files.WEIGHTS if (first / files.WEIGHTS).is_file() else None


def _compared(one: Path, other: Path) -> tuple[int, int]:
    """Tensors that both files have, and those among them that are not equal."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(one, framework="pt") as left, safe_open(other, framework="pt") as right:
            shared = sorted(set(left.keys()) & set(right.keys()))
            equal = [_equal(left.get_tensor(name), right.get_tensor(name)) for name in shared]
    except SafetensorError as error:
        raise Damaged(f"{one} or {other} is not safetensors ({error}); save it again.") from error
    return len(shared), equal.count(False)


def _equal(one: Any, other: Any) -> bool:
    return one.shape == other.shape and bool((one == other).all())
