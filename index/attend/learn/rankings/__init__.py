"""What should be found: rankings of documents by questions, fitted and tried on held-out ones."""
