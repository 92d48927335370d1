"""Engines: where the collections of a library live.

A folder (SQLite and FAISS) is the default and needs nothing else. The scheme of any other address
names an engine that an installed distribution brings, as `milvus://HOST:PORT/LIBRARY` after
`pip install 'attend-retrieval[milvus]'`. All open collections by one protocol
(`attend.engines.engine`); an engine lists its features in its `Capabilities` and raises
`Unsupported` for the others.
"""
