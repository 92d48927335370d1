"""The number format that an encoder computes in, by measurement on this processor.

A processor that multiplies bfloat16 need not be faster by it: with AMX it takes half the time of
float32, with AVX512-BF16 alone half of it on one maker's and 1.6 times as much on another's, where
products in int8 take two thirds. So the formats are timed once, at what a service does, and the
choice is kept for every later process.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from filelock import FileLock

from attend.core.errors import InvalidRequest
from attend.core.types import Json
from attend.encoder.passages import using_cores

ENVIRONMENT = "ATTEND_PRECISION"

Precision = Literal["auto", "bfloat16", "float32", "int8"]

FORMATS = get_args(Precision)[1:]

BFLOAT16_FLAGS = frozenset({"amx_bf16", "avx512_bf16"})
INT8_FLAGS = frozenset({"amx_int8", "avx512_vnni", "avx_vnni"})
"""The processor features that multiply bfloat16 and int8, as torch names them."""

USES = ("document", "query")

RECORD = "precision.json"
"""The file of a library that keeps what was measured."""

CLEAR, MEASURING_SECONDS, LEAST_ROUNDS = 1.25, 0.5, 5
"""For each use the formats take turns until one leads by so much, or for so much of the processor's
time, and so often at the least: the shortest time of each is that of a moment in which no neighbour
had the caches. By the clock and in two turns, 2 of 24 choices beside others were wrong."""

DOCUMENT = "the sea is wide and a ship sails on until night " * 14
"""A text of 156 tokens."""

QUERIES = [f"how wide is sea {number}" for number in range(16)]

_measured: dict[str, dict[str, Any]] = {}
"""What this process measured, by model: a library of another folder takes it over."""


class Formatted(Protocol):
    """An encoder in a number format."""

    precision: str

    def run(self, texts: list[str], task: str) -> object: ...


def usable_formats(precision: str, device: str) -> tuple[str, ...]:
    """Return the number formats to choose from; `ATTEND_PRECISION`, if set, is what auto means.

    bfloat16 halves the bytes and doubles the multiply rate, but only where the processor multiplies
    it itself (AMX or AVX512-BF16), and not on each of those; elsewhere torch emulates it, slower
    than float32. int8 is for products alone, where the processor has instructions for it.

    Raises:
        InvalidRequest: a precision that is none of `Precision`.
    """
    precision = (os.environ.get(ENVIRONMENT) or precision) if precision == "auto" else precision
    if precision in FORMATS:
        return (precision,)
    if precision != "auto":
        raise InvalidRequest(
            f"The precision {precision!r} is unknown; choose auto, {', '.join(FORMATS[:-1])} or "
            f"{FORMATS[-1]}, in {ENVIRONMENT} too.",
            field="precision",
        )
    import torch

    if device.startswith("cuda"):
        is_fast = bool(torch.cuda.is_bf16_supported(including_emulation=False))
        return ("bfloat16",) if is_fast else ("float32",)
    features = {name for name, has in torch.cpu.get_capabilities().items() if has is True}
    flags_of = {"bfloat16": BFLOAT16_FLAGS, "int8": INT8_FLAGS}
    multiplied = [name for name, flags in flags_of.items() if not flags.isdisjoint(features)]
    return ("float32", *multiplied) if device == "cpu" else ("float32",)


def fastest(
    model: str, record: Path | None, load_all: Callable[[], Iterable[Formatted]], *, keep: bool
) -> dict[str, str]:
    """Return the fastest format for each use, as it was measured on this processor, or is now.

    Args:
        model: the encoder's name.
        record: a JSON file that keeps what was measured; None for none.
        load_all: loads the model in every format.
        keep: false if nothing may be written.
    """
    writable = keep and record is not None and os.access(record.parent, os.W_OK)
    with FileLock(f"{record}.lock") if writable else nullcontext():  # one measures for all
        by_model = _read(record)
        if not _is_of_here(by_model.get(model)):
            if model not in _measured:
                _measured[model] = {"processor": processor(), **measured(load_all())}
            by_model[model] = _measured[model]
            if record is not None and writable:
                with suppress(OSError):  # on a full disk it is measured again
                    fresh = record.with_name(f"{record.name}.new")
                    fresh.write_text(json.dumps(by_model, indent=2), encoding="utf-8")
                    fresh.replace(record)
    return {use: by_model[model][use]["format"] for use in USES}


def measured(encoders: Iterable[Formatted]) -> dict[str, Any]:
    """Time one model in several formats at what a service does.

    Returns: for each use the fastest format, and the milliseconds of all on one core: a document
        of some 160 tokens; a query alone, and in a call of sixteen, by their geometric mean.
    """
    by_format = {encoder.precision: encoder for encoder in encoders}  # one format for look-ups
    by_use = {}
    for use, calls in zip(USES, ([[DOCUMENT]], [QUERIES[:1], QUERIES]), strict=True):
        times = {name: [math.inf] * len(calls) for name in by_format}
        milliseconds: dict[str, float] = {}
        is_clear, rounds, until = len(by_format) == 1, 0, time.thread_time() + MEASURING_SECONDS
        while not is_clear and (rounds < LEAST_ROUNDS or time.thread_time() < until):
            for (name, encoder), (place, texts) in product(by_format.items(), enumerate(calls)):
                started = time.thread_time()  # neighbours take none of it
                with using_cores(1):
                    encoder.run(texts, use)
                seconds = time.thread_time() - started
                if rounds:  # the first prepares operators
                    times[name][place] = min(times[name][place], seconds / len(texts))
            rounds += 1
            milliseconds = {
                name: round(1000 * math.prod(shortest) ** (1 / len(shortest)), 3)
                for name, shortest in times.items()
            }
            first, second, *_ = sorted(milliseconds.values())
            is_clear = rounds >= LEAST_ROUNDS and CLEAR * first < second
        format_of_least = min(times, key=lambda name: milliseconds.get(name, math.inf))
        by_use[use] = {"format": format_of_least, "milliseconds": milliseconds}
    return by_use


def precisions(record: Path) -> dict[str, Json]:
    """Return the formats that were measured on this processor, by model and use."""
    return {
        model: {use: by_use[use]["format"] for use in USES} | {"processor": processor()}
        for model, by_use in _read(record).items()
        if _is_of_here(by_use)
    }


def _is_of_here(by_use: Any) -> bool:
    """Return whether something is a whole measurement of this processor."""
    with suppress(LookupError, TypeError):
        formats = {by_use[use]["format"] for use in USES}
        return by_use["processor"] == processor() and formats <= set(FORMATS)
    return False


def _read(record: Path | None) -> dict[str, Any]:
    """Return what was measured, by the name of the model; nothing of a file that is no record."""
    try:
        by_model = {} if record is None else json.loads(record.read_bytes())
    except (OSError, ValueError):
        return {}  # it is measured again
    return by_model if isinstance(by_model, dict) else {}


@cache
def processor() -> str:
    """Return the name of the processor, with the number of cores and what it multiplies.

    >>> processor()  # doctest: +SKIP
    'Intel(R) Xeon(R) Processor, 2 cores, amx_bf16, amx_int8, avx512_bf16, avx512_vnni, avx_vnni'
    """
    name, flags = platform.processor() or platform.machine(), list[str]()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            field, _, value = line.partition(":")
            if field.strip() == "model name":
                name = value.strip()
            elif field.strip() == "flags":
                flags = sorted((BFLOAT16_FLAGS | INT8_FLAGS) & set(value.split()))
    return ", ".join([name, f"{os.cpu_count()} cores", *flags])
