"""The views, by subject."""

from attend_service.operations import Operation
from attend_service.routes import (
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
