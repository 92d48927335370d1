"""Peers of learning: what else one would do with the same examples and the same encoder.

- `linear_adapter`: LlamaIndex's linear adapter, by the recipe that its documentation publishes for
  `EmbeddingAdapterFinetuneEngine`: a square matrix on query embeddings that starts at the identity,
  without bias; a cosine times 20 and cross-entropy over batches of 10 whose other documents are the
  negatives; the first relevant document of each query; AdamW at 2e-5 with a tenth of the steps as
  warm-up and linear decay; gradients clipped at 1; 4 epochs; documents stay as they are. The
  library itself runs where it is installed, else the same steps in torch: `details` says which.
- `fine_tuned`: all weights of the encoder, with sentence-transformers' trainer and
  MultipleNegativesRankingLoss in the settings of its documentation (batches of 16 without
  duplicates, AdamW at 2e-5, a tenth as warm-up, then linear decay), until the epochs or the minutes
  are over, whichever is first: the rate follows the clock too, so that a training that time cuts
  short has its warm-up and its decay all the same. Every document is then embedded anew, by the
  fastest encoder there is here.

Both are trained on (query, relevant document) texts alone: neither knows passages, grades or
negative labels.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import common  # noqa: F401  # puts the project on the path
import numpy as np
from numpy.typing import NDArray

from index.encoder import Encoder, load

Rows = NDArray[np.float32]

ADAPTER_EPOCHS = 4
ADAPTER_BATCH = 10
ADAPTER_RATE = 2e-5
ADAPTER_SCALE = 20.0

TUNING_EPOCHS = 10
"""More than the minutes allow on most sets: the clock is to end it, not this."""

TUNING_BATCH = 16
TUNING_RATE = 2e-5
WARM_UP = 0.1


class Task(NamedTuple):
    """What a peer is given: training queries, the whole corpus, and who is relevant to whom.

    `query_rows` and `document_rows` are the encoder's embeddings in the order of the mappings,
    (q, d) and (n, d); they are made where not given, outside of what is timed.
    """

    queries: Mapping[str, str]
    documents: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, float]]
    encoder: str
    query_rows: Rows | None = None
    document_rows: Rows | None = None

    def pairs(self) -> list[tuple[str, str]]:
        """(query id, document id) of everything relevant; ids without a text are left out."""
        return [
            (query, document)
            for query, judged in self.qrels.items()
            if query in self.queries
            for document, grade in judged.items()
            if grade > 0 and document in self.documents
        ]


@dataclass(frozen=True)
class Peer:
    """A trained peer. Rows of `embed_queries` and `embed_documents` are compared by cosine.

    Attributes:
        training_seconds: of the training alone, models loaded and texts embedded.
        live_seconds: from there until all documents of the task are embedded by the new model;
            0 where documents stay as they are.
        document_rows: (n, d) the task's documents, as `live_seconds` made them.
        details: what was run: library or not, epochs, steps, examples.
    """

    name: str
    embed_queries: Callable[[Sequence[str]], Rows]
    embed_documents: Callable[[Sequence[str]], Rows]
    training_seconds: float
    live_seconds: float
    document_rows: Rows
    details: Mapping[str, Any] = field(default_factory=dict)


# -- the adapter ----------------------------------------------------------------------------


def linear_adapter(task: Task, *, epochs: int = ADAPTER_EPOCHS) -> Peer:
    """LlamaIndex's linear adapter on queries; see the module's docstring."""
    encoder = load(task.encoder)
    queries, documents = _embedded(task, encoder)
    train = _by_library if _has_library() else _by_torch
    started = time.perf_counter()
    with _quiet():
        weight = train(task, queries, documents, epochs)
    seconds = time.perf_counter() - started

    def embed_queries(texts: Sequence[str]) -> Rows:
        return _unit(encoder.encode_queries(texts) @ weight.T)  # (q, d) @ (d, d) -> (q, d)

    return Peer(
        name="LlamaIndex linear adapter",
        embed_queries=embed_queries,
        embed_documents=encoder.encode_documents,
        training_seconds=seconds,
        live_seconds=0.0,
        document_rows=documents,
        details={
            "implementation": "llama-index-finetuning" if train is _by_library else "torch",
            "examples": len(_first_pairs(task)),
            "epochs": epochs,
        },
    )


def _embedded(task: Task, encoder: Encoder) -> tuple[Rows, Rows]:
    queries, documents = task.query_rows, task.document_rows
    if queries is None:
        queries = encoder.encode_queries(list(task.queries.values()))
    if documents is None:
        documents = encoder.encode_documents(list(task.documents.values()))
    if (len(queries), len(documents)) != (len(task.queries), len(task.documents)):
        raise ValueError(
            f"{len(queries)} query and {len(documents)} document rows were given for "
            f"{len(task.queries)} queries and {len(task.documents)} documents."
        )
    return queries, documents


def _first_pairs(task: Task) -> dict[str, str]:
    """One relevant document for each query: the recipe takes the first."""
    first: dict[str, str] = {}
    for query, document in task.pairs():
        first.setdefault(query, document)
    return first


def _has_library() -> bool:
    try:
        with _quiet():
            import llama_index.finetuning  # noqa: F401
    except ImportError:
        return False
    return True


def _by_library(task: Task, queries: Rows, documents: Rows, epochs: int) -> Rows:
    from llama_index.finetuning import EmbeddingAdapterFinetuneEngine, EmbeddingQAFinetuneDataset

    pairs = _first_pairs(task)
    dataset = EmbeddingQAFinetuneDataset(
        queries={query: task.queries[query] for query in pairs},
        corpus={document: task.documents[document] for document in pairs.values()},
        relevant_docs={query: [document] for query, document in pairs.items()},
    )
    stored = _stored_embedding(
        dict(zip(task.queries.values(), queries, strict=True)),
        dict(zip(task.documents.values(), documents, strict=True)),
    )
    with tempfile.TemporaryDirectory() as folder:
        engine = EmbeddingAdapterFinetuneEngine(
            dataset,
            stored,
            epochs=epochs,
            dim=queries.shape[1],
            device="cpu",
            model_output_path=folder,
            show_progress_bar=False,
        )
        engine.finetune()
    weight: Rows = engine.model.linear.weight.detach().numpy()
    return weight


def _stored_embedding(queries: Mapping[str, Rows], documents: Mapping[str, Rows]) -> Any:
    """The library's embedding model over embeddings that there are, by text."""
    from llama_index.core.base.embeddings.base import BaseEmbedding

    class Stored(BaseEmbedding):  # type: ignore[misc]
        def _get_query_embedding(self, query: str) -> Any:
            return queries[query].tolist()

        def _get_text_embedding(self, text: str) -> Any:
            return documents[text].tolist()

        async def _aget_query_embedding(self, query: str) -> Any:
            return queries[query].tolist()

    return Stored()


def _by_torch(task: Task, queries: Rows, documents: Rows, epochs: int) -> Rows:
    import torch
    from torch.nn.functional import cross_entropy, normalize
    from transformers import get_linear_schedule_with_warmup

    place = {id: at for at, id in enumerate(task.queries)}
    target = {id: at for at, id in enumerate(task.documents)}
    pairs = _first_pairs(task)
    asked = torch.from_numpy(queries[[place[query] for query in pairs]])  # (e, d)
    meant = torch.from_numpy(documents[[target[document] for document in pairs.values()]])
    weight = torch.nn.Parameter(torch.eye(queries.shape[1]))
    optimizer = torch.optim.AdamW([weight], lr=ADAPTER_RATE)
    steps = -(-len(pairs) // ADAPTER_BATCH) * epochs
    schedule = get_linear_schedule_with_warmup(optimizer, int(steps * WARM_UP), steps)
    for _ in range(epochs):
        # In the order given, as the recipe's loader has it.
        for q, k in zip(asked.split(ADAPTER_BATCH), meant.split(ADAPTER_BATCH), strict=True):
            cosines = normalize(q @ weight.T) @ normalize(k).T  # (b, d) @ (d, b) -> (b, b)
            cross_entropy(cosines * ADAPTER_SCALE, torch.arange(len(q))).backward()
            torch.nn.utils.clip_grad_norm_([weight], 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    trained: Rows = weight.detach().numpy()
    return trained


# -- the encoder itself ---------------------------------------------------------------------


def fine_tuned(task: Task, *, minutes: float = 30.0, epochs: int = TUNING_EPOCHS) -> Peer:
    """The whole encoder trained, and every document embedded by it; see the module's docstring.

    Needs `datasets` and `accelerate`, which sentence-transformers' trainer needs.

    Args:
        minutes: the training stops after the step that passes them, and what there is is used.
    """
    with tempfile.TemporaryDirectory() as folder:
        model, training = _trainer(task, folder, minutes, epochs)
        started = time.perf_counter()
        with _quiet():
            training.train()
        seconds = time.perf_counter() - started
        started = time.perf_counter()
        model.save_pretrained(folder + "/model", create_model_card=False)
        encoder = load(folder + "/model")
        documents = encoder.encode_documents(list(task.documents.values()))
        live = time.perf_counter() - started
    return Peer(
        name="sentence-transformers, all weights",
        embed_queries=encoder.encode_queries,
        embed_documents=encoder.encode_documents,
        training_seconds=seconds,
        live_seconds=live,
        document_rows=documents,
        details={
            "examples": len(task.pairs()),
            "steps": training.state.global_step,
            "epochs": round(float(training.state.epoch or 0), 2),
            "planned_epochs": epochs,
            "precision": encoder.precision,
        },
    )


def _trainer(task: Task, folder: str, minutes: float, epochs: int) -> tuple[Any, Any]:
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.training_args import BatchSamplers

    from index.encoder.loading import find

    pairs = task.pairs()
    model = SentenceTransformer(find(task.encoder).place, device="cpu", local_files_only=True)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=folder + "/training",
        num_train_epochs=epochs,
        per_device_train_batch_size=TUNING_BATCH,
        learning_rate=TUNING_RATE,
        batch_sampler=BatchSamplers.NO_DUPLICATES,
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    examples = Dataset.from_dict(
        {
            "anchor": [task.queries[query] for query, _ in pairs],
            "positive": [task.documents[document] for _, document in pairs],
        }
    )
    steps = -(-len(pairs) // TUNING_BATCH) * epochs
    optimizer, clock = _optimizer(model, steps, minutes * 60)
    return model, SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=examples,
        loss=MultipleNegativesRankingLoss(model),
        optimizers=optimizer,
        callbacks=[clock],
    )


def _optimizer(model: Any, steps: int, seconds: float) -> tuple[tuple[Any, Any], Any]:
    """AdamW with its schedule, and the callback that ends the training with the time."""
    import torch
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        started = float("inf")

        def passed(self) -> float:
            """The share of the time that is over."""
            return max(0.0, time.monotonic() - self.started) / seconds

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.started = time.monotonic()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop |= self.passed() >= 1

    def rate(step: int) -> float:
        share = min(1.0, max(step / steps, clock.passed()))
        return share / WARM_UP if share < WARM_UP else (1 - share) / (1 - WARM_UP)

    clock = Clock()
    optimizer = torch.optim.AdamW(model.parameters(), lr=TUNING_RATE, weight_decay=0.0)
    return (optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rate)), clock


# -- both -----------------------------------------------------------------------------------


def _unit(rows: Rows) -> Rows:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1), dtype=np.float32)


@contextmanager
def _quiet() -> Iterator[None]:
    """What libraries print goes to stderr: a benchmark's stdout is its result."""
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        yield
