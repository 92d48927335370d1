"""Taking in documents: from a source to keys and values in the store."""
