"""A peer of learning: a linear adapter on queries.

LlamaIndex's linear adapter, by the recipe that its documentation publishes for
`EmbeddingAdapterFinetuneEngine`: a square matrix on query embeddings that starts at the identity,
without bias; a cosine times 20 and cross-entropy over batches of 10 whose other documents are the
negatives; the first relevant document of each query; AdamW at 2e-5 with a tenth of the steps as
warm-up and linear decay; gradients clipped at 1; 4 epochs; documents stay as they are. The
library itself runs where it is installed, else the same steps in torch: `details` says which.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import common  # noqa: F401  # puts the project on the path
from learning_peers import WARM_UP, Peer, Rows, Task, embedded, quiet, unit

from attend.encoder import load

ADAPTER_EPOCHS = 4
ADAPTER_BATCH = 10
ADAPTER_RATE = 2e-5
ADAPTER_SCALE = 20.0


def linear_adapter(task: Task, *, epochs: int = ADAPTER_EPOCHS) -> Peer:
    """LlamaIndex's linear adapter on queries; see the module's docstring."""
    encoder = load(task.encoder)
    queries, documents = embedded(task, encoder)
    train = _by_library if _has_library() else _by_torch
    started = time.perf_counter()
    with quiet():
        weight = train(task, queries, documents, epochs)
    seconds = time.perf_counter() - started

    def embed_queries(texts: Sequence[str]) -> Rows:
        return unit(encoder.encode_queries(texts) @ weight.T)  # (q, d) @ (d, d) -> (q, d)

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


def _first_pairs(task: Task) -> dict[str, str]:
    """One relevant document for each query: the recipe takes the first."""
    first: dict[str, str] = {}
    for query, document in task.pairs():
        first.setdefault(query, document)
    return first


def _has_library() -> bool:
    try:
        with quiet():
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
