"""Connectors: collections in the forms of other programs, each imported when it is asked for."""
