"""A server under load, killed at random moments, beside an exact oracle; and each long operation
of a library, let fail at each of its stages.

`python -m tests.soak` runs it as long as wanted; `tests/service/test_soak_short.py` and
`tests/index/test_operations.py` for a moment.
"""
