"""Feedback: labels of documents for queries and interactions of users, stored in a collection."""

from attend.write.feedback import add_feedback, add_interactions

__all__ = ["add_feedback", "add_interactions"]
