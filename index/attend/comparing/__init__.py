"""Comparing two versions: what changed, for which queries, and whether it could be chance."""
