"""Milvus: collections on a server or a cluster, for any number of processes at once."""
