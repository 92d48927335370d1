"""The views, by subject."""

from attend_service.context import Operation
from attend_service.routes import dify, documents, learning, qdrant, search, server

SUBJECTS = (
    documents.collections,
    documents.aliases,
    documents.operations,
    search.operations,
    search.recommendations,
    learning.operations,
    learning.projections,
    dify.operations,
    qdrant.operations,
    server.administration,
    server.operations,
)


def all_operations() -> list[Operation]:
    return [operation for subject in SUBJECTS for operation in subject.all]
