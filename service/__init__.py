"""The HTTP API and the pages over `index`: it knows HTTP, and neither FAISS nor SQLite."""
