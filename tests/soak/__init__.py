"""A server under load, killed at random moments, beside an exact oracle.

`python -m tests.soak` runs it as long as wanted; `tests/service/test_soak_short.py` for a moment.
"""
