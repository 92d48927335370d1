"""Searching: a query → attention over a snapshot → an answer.

Queries are encoded and moved by stored feedback (`queries`) and attend to the keys of a snapshot
(`attend`); the best are scored once more by their tokens (`tokens`); their values (`values`) are
blended, and their hits listed and explained (`hits`), in an answer (`answer`). Queries that are
foreign to a collection are told by its own texts (`foreign`). Several collections are merged in
`across`.
"""
