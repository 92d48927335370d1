"""A peer of learning: the whole encoder, fine-tuned.

All weights of the encoder, with sentence-transformers' trainer and MultipleNegativesRankingLoss
in the settings of its documentation (batches of 16 without duplicates, AdamW at 2e-5, a tenth as
warm-up, then linear decay), until the epochs or the minutes are over, whichever is first: the
rate follows the clock too, so that a training that time cuts short has its warm-up and its decay
all the same. It trains on a GPU where there is one. On processors, minutes are those of all cores,
counted by the time that the training has run on them: what runs beside it takes nothing from it.
Every document is then embedded anew, by the fastest encoder there is here.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import common  # noqa: F401  # puts the project on the path
from learning_peers import WARM_UP, Peer, Task, quiet

from attend.encoder import load

TUNING_EPOCHS = 10
"""More than the minutes allow on most sets: the clock is to end it, not this."""

TUNING_BATCH = 16
TUNING_RATE = 2e-5


def fine_tuned(task: Task, *, minutes: float = 30.0, epochs: int = TUNING_EPOCHS) -> Peer:
    """The whole encoder trained, and every document embedded by it; see the module's docstring.

    Needs `datasets` and `accelerate`, which sentence-transformers' trainer needs.

    Args:
        minutes: the training stops after the step that passes them, and what there is is used.
    """
    with tempfile.TemporaryDirectory() as folder:
        model, training = _trainer(task, folder, minutes, epochs)
        spent = _spent()
        started = spent()
        with quiet():
            training.train()
        seconds = spent() - started
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
            "device": str(training.args.device),
            "precision": encoder.precision,
        },
    )


def _spent() -> Callable[[], float]:
    """Return a clock of the machine: of a core's seconds over the number of cores, or a GPU's."""
    import torch

    if torch.cuda.is_available():
        return time.monotonic
    cores = os.cpu_count() or 1
    return lambda: time.process_time() / cores


def _trainer(task: Task, folder: str, minutes: float, epochs: int) -> tuple[Any, Any]:
    import torch
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.training_args import BatchSamplers

    from attend.encoder.loading import find

    pairs = task.pairs()
    has_gpu = torch.cuda.is_available()
    model = SentenceTransformer(
        find(task.encoder).place, device="cuda" if has_gpu else "cpu", local_files_only=True
    )
    arguments = SentenceTransformerTrainingArguments(
        output_dir=folder + "/training",
        num_train_epochs=epochs,
        per_device_train_batch_size=TUNING_BATCH,
        learning_rate=TUNING_RATE,
        batch_sampler=BatchSamplers.NO_DUPLICATES,
        use_cpu=not has_gpu,
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

    spent = _spent()

    class Clock(TrainerCallback):
        started = float("inf")

        def passed(self) -> float:
            """The share of the time that is over."""
            return max(0.0, spent() - self.started) / seconds

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.started = spent()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop |= self.passed() >= 1

    def rate(step: int) -> float:
        share = min(1.0, max(step / steps, clock.passed()))
        return share / WARM_UP if share < WARM_UP else (1 - share) / (1 - WARM_UP)

    clock = Clock()
    optimizer = torch.optim.AdamW(model.parameters(), lr=TUNING_RATE, weight_decay=0.0)
    return (optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rate)), clock


# -- both -----------------------------------------------------------------------------------
