"""The HTTP API and the pages over `index`: it knows HTTP, and nothing of FAISS or embeddings."""

from attend.cli import main as main

main.later |= {
    "config": ("attend_service.cli", "Print the settings that the server would have."),
    "keys": ("attend_service.cli", "Make, list and remove API keys."),
    "serve": ("attend_service.cli", "Serve the collections of a data folder over HTTP."),
}
