"""The views, by subject."""

from service.operations import Operation
from service.routes import (
    aliases,
    collections,
    documents,
    operation,
    pages,
    projections,
    recommend,
    search,
    training,
)

SUBJECTS = (
    collections.operations,
    aliases.operations,
    documents.operations,
    search.operations,
    recommend.operations,
    training.operations,
    projections.operations,
    operation.operations,
    pages.operations,
)


def all_operations() -> list[Operation]:
    return [operation for subject in SUBJECTS for operation in subject.all]
