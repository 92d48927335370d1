"""Feedback: labels of documents for queries and interactions of users, read and stored.

`add_feedback` and `add_interactions` store what callers send. `reading` reads tables of labels and
of interactions, `files` reads judgements (BEIR and TREC) and click logs; `gathering` collects the
entries that a collection takes.
"""

from attend.feedback.adding import add_feedback, add_interactions

__all__ = ["add_feedback", "add_interactions"]
