"""Which number format a model computes in.

bfloat16 halves the bytes and doubles the multiply rate, but only where the processor
multiplies it itself (AMX or AVX512-BF16); elsewhere torch emulates it, slower than float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attend.errors import InvalidRequest

if TYPE_CHECKING:
    from torch import nn

Precision = Literal["auto", "bfloat16", "float32"]

BFLOAT16_FLAGS = frozenset({"amx_bf16", "avx512_bf16"})
"""The processor features that multiply bfloat16, in the words that Linux and torch share."""

CPUINFO = Path("/proc/cpuinfo")


def choose(precision: str, device: str, model: nn.Module) -> str:
    """The format to compute in.

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
    """A model that only looks vectors up would lose digits and gain no speed."""
    import torch

    return any(isinstance(module, torch.nn.Linear) for module in model.modules())


def _multiplies_bfloat16(device: str) -> bool:
    import torch

    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device == "cpu" and not BFLOAT16_FLAGS.isdisjoint(cpu_features())


def cpu_features() -> frozenset[str]:
    """The processor's feature flags; empty where neither torch nor the system tells."""
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
