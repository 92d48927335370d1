"""The HTTP API and the pages over `index`: it knows HTTP, and nothing of FAISS or embeddings."""
