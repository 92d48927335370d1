"""MTEB's `SearchProtocol`, so that its retrieval tasks measure a library as it answers.

```
import mteb
from attend.connect.mteb import AttendSearch

mteb.evaluate(AttendSearch("library", lexical=True), mteb.get_task("SciFact"))
```

The extra is `mteb` itself: pip install mteb.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import attend
from attend.api.base import MAX_DOCUMENTS, MAX_K
from attend.api.search import MAX_BATCH
from attend.core.errors import InvalidRequest
from attend.measure.rankings import falling


class AttendSearch:
    """A library as a model of MTEB: a collection for each corpus, and searches in it.

    A collection that exists is brought to the state of the corpus; what it has learned stays, so
    that a training on the task's training split can be measured.
    """

    def __init__(
        self,
        library: str | Path | attend.Data,
        *,
        settings: Mapping[str, Any] | None = None,
        name: str = "attend/attend",
        **options: Any,
    ) -> None:
        """
        Args:
            library: a folder or an address, as `attend.open` takes it, or a library.
            settings: of the collections, such as {"encoder": "./model"}.
            name: of the model in MTEB's results, `organisation/model`.
            options: those of each search, such as `lexical` or `projection`.

        >>> AttendSearch(library, lexical=True).mteb_model_meta.name  # doctest: +SKIP
        'attend/attend'
        """
        self.library: Any = attend.open(library) if isinstance(library, str | Path) else library
        self._settings, self._options, self._name = dict(settings or {}), options, name

    @property
    def mteb_model_meta(self) -> Any:
        """The name, the version of Attend and the options of searches, for MTEB's results."""
        from mteb.models import ModelMeta

        return ModelMeta.create_empty(
            {
                "name": self._name,
                "revision": attend.__version__,
                "experiment_kwargs": {**self._settings, **self._options} or None,
            }
        )

    def collection(self, task_metadata: Any, hf_split: str, hf_subset: str) -> Any:
        """Return the collection of a corpus; it is created where it does not exist."""
        parts = [str(task_metadata.name), hf_subset, hf_split]
        name = re.sub(r"[^A-Za-z0-9_-]", "_", "-".join(parts))[:63]
        return self.library.ensure(name, **self._settings)

    def index(
        self,
        corpus: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        **others: Any,
    ) -> None:
        """Store the corpus, title and text joined as `attend build` does with BEIR's layout."""
        collection = self.collection(task_metadata, hf_split, hf_subset)
        gone, coming = collection.ids(), iter(corpus)
        while rows := list(islice(coming, MAX_DOCUMENTS)):
            documents = []
            for row in rows:
                text = f"{row.get('title') or ''} {row['text']}".strip()
                documents.append({"id": row["id"], **({"text": text} if text else {})})
            collection.upsert(documents, progress=False)
            gone -= {row["id"] for row in rows}
        collection.delete(sorted(gone))

    def search(
        self,
        queries: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        top_ranked: Mapping[str, list[str]] | None = None,
        **others: Any,
    ) -> dict[str, dict[str, float]]:
        """Return query id → document id → score, in the order of our ranking also among equals.

        Args:
            top_ranked: query id → the only documents to rank, as re-ranking tasks have them.

        Raises:
            InvalidRequest: a query is no text.
        """
        collection, k = self.collection(task_metadata, hf_split, hf_subset), min(top_k, MAX_K)
        options = {"k": k, "attend": max(k, 100), **self._options}
        run, coming = dict[str, dict[str, float]](), iter(queries)
        while rows := list(islice(coming, MAX_BATCH)):
            requests = []
            for row in rows:
                if not isinstance(row.get("text"), str):
                    raise InvalidRequest(
                        f"The query {row['id']!r} is no text. Only retrieval of text by text is "
                        f"supported; choose such a task.",
                        field="query",
                    )
                # As MTEB's own models have it, for tasks with instructions.
                text = " ".join(filter(None, (row["text"], row.get("instruction"))))
                mask = {} if top_ranked is None else {"mask": {"only": top_ranked[row["id"]]}}
                requests.append({"query": text, **options, **mask})
            for row, answer in zip(rows, collection.search_many(requests), strict=True):
                scores = falling([hit.score for hit in answer.hits])
                run[row["id"]] = dict(zip((h.id for h in answer.hits), scores, strict=True))
        return run
