"""Searching: a query → attention over a snapshot → an answer.

Queries are encoded (`queries`), scored by what a version makes of their options (`scoring`) and
attend to the keys of a snapshot (`attend`; over parts of them, `estimate`); their values (`values`)
are blended and their hits listed and explained (`listing`) in an answer (`answer`). Several
collections are merged, and matrices made, in `several`.
"""
