"""What belongs to the documents of one search, as it was read with them."""

from __future__ import annotations

from attend.engines.milvus.keys import RemoteKeys
from attend.engines.milvus.store import RemoteStore
from attend.store import StoredDocument
from attend.types import Int64


class Reader:
    """As `RemoteStore`, but documents that a search has found are as it found them."""

    def __init__(self, store: RemoteStore, keys: RemoteKeys) -> None:
        self.sample = store.sample
        self.embeddings = store.embeddings
        self.keys_of = store.keys_of
        self.scroll = store.scroll
        self.all_keys = store.all_keys
        self._read = keys.documents_read

    def documents(self, rows: Int64) -> dict[int, StoredDocument]:
        return {row: self._read[row].document for row in rows.tolist() if row in self._read}

    values = documents
