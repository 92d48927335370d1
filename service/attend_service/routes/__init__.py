"""The views, by subject."""

from attend_service.context import Operation
from attend_service.routes import (
    dify,
    documents,
    learning,
    openai,
    qdrant,
    search,
    server,
    vector_stores,
)

SUBJECTS = (
    documents.collections,
    documents.aliases,
    documents.operations,
    search.operations,
    search.recommendations,
    learning.operations,
    learning.projections,
    openai.operations,
    vector_stores.stores,
    dify.operations,
    qdrant.operations,
    server.administration,
    server.operations,
)


def all_operations() -> list[Operation]:
    return [operation for subject in SUBJECTS for operation in subject.all]
