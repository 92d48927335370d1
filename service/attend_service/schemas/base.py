"""What every answer is, and what one is that tells of an error."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Reply(BaseModel):
    """Base of everything that is answered."""

    model_config = ConfigDict(extra="forbid")


class Wrong(Reply):
    """One thing wrong with a request."""

    field: str = Field(examples=["documents.3.vector"])
    reason: str


class ProblemReply(Reply):
    """An error, as RFC 9457 has it."""

    type: str = Field(description="What /docs says of this kind of problem.")
    title: str
    status: int
    detail: str = Field(description="What is wrong here, and what to do.")
    instance: str | None = Field(None, description="The path that was asked for.")
    errors: list[Wrong] = Field(default=[], description="The fields that are wrong.")
