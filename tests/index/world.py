"""A collection of texts with versions, and beside it the whole formula as dense matrices.

The oracle reads raw embeddings by SQL and multiplies in float64; of the package it takes only
BM25 (`Store.lexical`), which has an oracle of its own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attend.collection.data import Data
from attend.core.settings import Tuning
from attend.projection import Projection
from attend.store import NewExample, Question

WORDS = ("whale ship sea storm harbour gold island map pirate night lamp letter door rain").split()  # noqa: SIM905


def words(rng: np.random.Generator, most: int) -> str:
    return " ".join(rng.choice(WORDS, rng.integers(1, most + 1)))


@dataclass(frozen=True)
class Fitted:
    """A version as it was stored."""

    number: int
    projection: Projection
    tuning: Tuning
    offsets: dict[int, np.ndarray]


class World:
    """Documents of one or two text fields in two colours; examples; versions."""

    def __init__(self, folder: Any, encoder: Any, seed: int = 0, **settings: Any) -> None:
        self.encoder = encoder
        self.data = Data(folder, load_encoder=lambda name: encoder)
        self.collection = self.data.create("default", **settings)
        self.store = self.collection.store
        self.rng = np.random.default_rng(seed)

    def take(self, step: str, numbers: Sequence[int]) -> None:
        """One change: write, delete, teach, forget, publish."""
        ids = [f"d{number}" for number in numbers]
        known = sorted(set(ids) & self.collection.ids())
        if step == "write":
            self.collection.upsert([self._document(id) for id in dict.fromkeys(ids)])
        elif step == "delete":
            self.collection.delete(ids)
        elif step == "teach" and known:
            self.teach(words(self.rng, 4), known)
        elif step == "forget":
            self.store.delete_examples(documents=ids)
        elif step == "publish":
            self.collection.publish()

    def _document(self, id: str) -> dict[str, Any]:
        fields = {"title": words(self.rng, 3), "body": words(self.rng, 12)}
        if self.rng.random() < 0.5:
            del fields["title"]
        colour = "red" if self.rng.random() < 0.4 else "blue"
        return {"id": id, "fields": fields, "value": len(fields["body"]), "payload": {"c": colour}}

    def teach(self, text: str, ids: Sequence[str], weight: float = 1.0) -> None:
        """A question that these documents answer."""
        question = Question(text, self.encoder.encode_queries([text])[0])
        self.store.add_examples([question], [NewExample(0, id, weight) for id in ids])

    def key_ids(self) -> list[int]:
        """The documents' own keys."""
        found = self._sql("SELECT id FROM keys WHERE example IS NULL ORDER BY id")
        return [id for (id,) in found]

    def version(
        self,
        projection: Projection,
        tuning: Tuning = Tuning(),  # noqa: B008 # frozen
        offsets: dict[int, np.ndarray] | None = None,
        *,
        activate: bool = False,
    ) -> Fitted:
        ids = sorted(offsets or {})
        stacked = np.array([(offsets or {})[id] for id in ids], dtype=np.float32)
        number = self.store.add_projection(
            projection.kind,
            projection.to_bytes(),
            projection.fingerprint,
            {},
            tuning=tuning.stored(),
            offsets=(np.array(ids, dtype=np.int64), stacked) if ids else None,
            activate=activate,
        )
        return Fitted(number, projection, tuning, offsets or {})

    # -- the oracle -------------------------------------------------------------------------

    def logits(
        self,
        fitted: Fitted,
        query: str | np.ndarray,
        *,
        scale: Sequence[float],
        strength: tuple[float, float] = (0.0, 0.0),
        pool: str = "max",
    ) -> dict[str, np.ndarray]:
        """Each document's logits (H,), by id; `strength` is λ and γ."""
        p = fitted.projection
        heads, scales = p.heads, np.asarray(scale, dtype=np.float64)
        asked = self.encoder.encode_queries([query])[0] if isinstance(query, str) else query
        q = _projected(p, asked, p.w_q, p.b_q, p.normalize_queries, heads)  # (H, d)
        by_document: dict[str, list[np.ndarray]] = {}
        for id, key, example, embedding, question in self._sql(
            "SELECT documents.id, keys.id, keys.example, keys.embedding, questions.embedding "
            "FROM keys JOIN documents ON documents.row = keys.document "
            "LEFT JOIN examples ON examples.id = keys.example "
            "LEFT JOIN questions ON questions.id = examples.question"
        ):
            k = self._key(fitted, key, example is not None, question or embedding)
            if k is not None:
                score = np.array([a @ b for a, b in zip(q, np.broadcast_to(k, q.shape))])  # noqa: B905
                by_document.setdefault(id, []).append(scales * score)
        lexical = self._lexical(query, strength)
        reduce = np.max if pool == "max" else _log_sum_exp
        return {
            id: reduce(np.array(z), axis=0) + scales * lexical.get(id, 0.0)
            for id, z in by_document.items()
        }

    def _key(self, fitted: Fitted, key: int, example: bool, blob: bytes) -> np.ndarray | None:
        p, embedding = fitted.projection, np.frombuffer(blob, dtype=np.float32).astype(float)
        of_keys = 1 if p.w_k is None else len(p.w_k)
        if not example:
            moved = embedding + fitted.offsets.get(key, 0.0)
            return _projected(p, moved, p.w_k, p.b_k, p.normalize_keys, of_keys)
        if fitted.tuning.examples == 0:
            return None
        if of_keys == p.heads:
            k = _projected(p, embedding, p.w_q, p.b_q, p.normalize_queries, p.heads)
        else:
            k = _projected(p, embedding, p.w_k, p.b_k, p.normalize_keys, of_keys)
        return k * fitted.tuning.examples

    def _lexical(self, query: str | np.ndarray, strength: tuple[float, float]) -> dict[str, float]:
        weight, coverage = strength
        if not isinstance(query, str) or weight == 0:
            return {}
        found = self.store.lexical(query)
        if not len(found.rows):
            return {}
        ids = dict(self._sql("SELECT row, id FROM documents"))
        covered = min(1.0, found.maximum / found.ideal) ** coverage
        return {
            ids[row]: weight * covered * score / found.maximum
            for row, score in zip(found.rows.tolist(), found.scores.tolist(), strict=True)
        }

    def of_colour(self, colour: str | None) -> set[str]:
        found = self._sql("SELECT id, json_extract(payload, '$.c') FROM documents")
        return {id for id, each in found if colour in (None, each)}

    def _sql(self, statement: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.store.path)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()


def _projected(p, x, w, b, normalize, count) -> np.ndarray:
    """(count, d) in float64."""
    x = np.asarray(x, dtype=np.float64) - (0 if p.center is None else p.center)
    out = np.stack([x] * count) if w is None else np.array([m.astype(float) @ x for m in w])
    out = out if b is None else out + b
    if normalize:
        out = out / np.linalg.norm(out, axis=-1, keepdims=True)
    return out


def _log_sum_exp(z: np.ndarray, axis: int) -> np.ndarray:
    peak = z.max(axis=axis)
    return peak + np.log(np.exp(z - peak).sum(axis=axis))


def expected(
    logits: dict[str, np.ndarray],
    attend: int | str,
    *,
    gates: Sequence[float] = (1.0,),
    null: Sequence[float] | None = None,
    tau: float = 1.0,
) -> tuple[dict[str, float], float]:
    """Weights of the attended documents by id, and the null's."""
    ids, g = sorted(logits), np.asarray(gates, dtype=np.float64)
    z = np.array([logits[id] for id in ids]).reshape(len(ids), len(g)).T / tau  # (H, n)
    extra = None if null is None else np.asarray(null, dtype=np.float64)[:, None] / tau
    if attend != "all" and len(ids) > int(attend):
        mixture = z[0] if len(g) == 1 else g @ _softmax(z, extra)[0]
        kept = np.argsort(-mixture, kind="stable")[: int(attend)]
        ids, z = [ids[at] for at in kept], z[:, kept]
    weights, nulls = _softmax(z, extra)
    return dict(zip(ids, (g @ weights).tolist(), strict=True)), float(g @ nulls)


def _softmax(z: np.ndarray, null: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    whole = z if null is None else np.hstack([z, null])
    shares = np.exp(whole - whole.max(axis=1, keepdims=True, initial=-1e300))
    shares = shares / shares.sum(axis=1, keepdims=True)
    count = z.shape[1]
    return shares[:, :count], np.zeros(len(z)) if null is None else shares[:, count]


def check_weights(answer: Any, weights: dict[str, float], *, atol: float = 1e-6) -> None:
    """The listed hits have these weights; of documents that tie, any may be attended."""
    found = {hit.id: hit.weight for hit in answer.hits}
    assert answer.attended == len(weights) == len(found)
    np.testing.assert_allclose(sorted(found.values()), sorted(weights.values()), atol=atol)
    for id in found.keys() & weights.keys():
        assert abs(found[id] - weights[id]) <= atol
    strangers = sorted(weight for id, weight in found.items() if id not in weights)
    # Of several heads the last to be attended need not have the least weight.
    missing = sorted(weight for id, weight in weights.items() if id not in found)
    np.testing.assert_allclose(strangers, missing, atol=atol)
