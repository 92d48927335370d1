"""The views, by subject."""

from attend_service.operations import Operation
from attend_service.routes import collections, documents, learning, recommend, search, server

SUBJECTS = (
    collections.operations,
    collections.aliases,
    documents.operations,
    search.operations,
    recommend.operations,
    learning.operations,
    learning.projections,
    server.administration,
    server.operations,
)


def all_operations() -> list[Operation]:
    return [operation for subject in SUBJECTS for operation in subject.all]
