"""Connectors: a client of a server, and the forms that other programs speak.

Each is a module of its own, which imports the other program's library, and is imported by whoever
asks for it alone.
"""
