"""Feedback: labels of documents for queries and interactions of users, read and stored.

`add_feedback` and `add_interactions` store what callers send. Files are read by `read_labels`
(tables), `read_judgements` (BEIR and TREC), `read_clicks` (click logs) and `read_interactions`;
`gather` collects the entries that a collection takes.
"""

from attend.api.feedback import FeedbackAdded, InteractionsAdded
from attend.feedback.adding import Gathered, add_feedback, add_interactions, gather, unfit
from attend.feedback.files import propensity, read_clicks, read_judgements
from attend.feedback.reading import (
    CLICKS,
    INTERACTIONS,
    LABELS,
    label_columns,
    read_interactions,
    read_labels,
)

__all__ = [
    "CLICKS",
    "INTERACTIONS",
    "LABELS",
    "FeedbackAdded",
    "Gathered",
    "InteractionsAdded",
    "add_feedback",
    "add_interactions",
    "gather",
    "label_columns",
    "propensity",
    "read_clicks",
    "read_interactions",
    "read_judgements",
    "read_labels",
    "unfit",
]
