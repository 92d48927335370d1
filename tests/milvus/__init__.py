"""Tests over a real Milvus server; both engines pass the same contract."""
