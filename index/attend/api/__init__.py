"""The API: what callers may ask and what comes back, each said once.

Requests are pydantic models, validated once for Python, the command line and HTTP; the service
publishes the same models as its OpenAPI schemas. A model refuses unknown fields, and a wrong value
becomes an `InvalidRequest` whose sentence names the field.
"""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from attend.api.answers import AcrossAnswer, Answer, Facet, Matrix, Predicted, Recommended
    from attend.api.documents import CollectionInfo, Written
    from attend.api.feedback import FeedbackAdded, InteractionsAdded, SearchesPage, Used
    from attend.api.learning import LogComparison, StoredProjection

__all__ = [
    "AcrossAnswer",
    "Answer",
    "CollectionInfo",
    "Facet",
    "FeedbackAdded",
    "InteractionsAdded",
    "LogComparison",
    "Matrix",
    "Predicted",
    "Recommended",
    "SearchesPage",
    "StoredProjection",
    "Used",
    "Written",
]

# Imported when they are used: beside the replies stand the models of requests, which a client of a
# server leaves to the server.
__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "answers": ["AcrossAnswer", "Answer", "Facet", "Matrix", "Predicted", "Recommended"],
        "documents": ["CollectionInfo", "Written"],
        "feedback": ["FeedbackAdded", "InteractionsAdded", "SearchesPage", "Used"],
        "learning": ["LogComparison", "StoredProjection"],
    },
)
