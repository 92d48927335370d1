"""Searching: what may be asked (`requests`), how it is answered (`searching`), what comes back
(`answers`).

A query becomes embeddings (`asking`), attends to the keys of a view (`attending`), and what it
attended to is read, blended and listed (`answering`).
"""
