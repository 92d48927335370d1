"""The views, by subject."""

from service.operations import Operation
from service.routes import collections, documents, pages, projections, search, training

SUBJECTS = (
    collections.operations,
    documents.operations,
    search.operations,
    training.operations,
    projections.operations,
    pages.operations,
)


def all_operations() -> list[Operation]:
    return [operation for subject in SUBJECTS for operation in subject.all]
