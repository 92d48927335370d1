"""Milvus: collections on a server or a cluster, for any number of processes at once."""

from attend.engines.milvus.engine import Milvus

__all__ = ["Milvus"]
