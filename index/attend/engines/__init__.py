"""Engines: where the collections of a library live.

A folder (SQLite and FAISS) is the default and needs nothing else. `milvus://HOST:PORT/LIBRARY` is a
Milvus server or cluster, which needs `requirements-milvus.txt`. Both give `Data` the same `Parts`;
what one cannot do it declares in its `Capabilities` and refuses with `Unsupported`.
"""
