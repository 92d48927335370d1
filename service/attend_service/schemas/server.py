"""Answers about the server itself."""

from __future__ import annotations

from pydantic import Field

from attend_service.schemas.base import Reply


class HealthReply(Reply):
    status: str = Field(examples=["alive"])


class ReadinessReply(Reply):
    """`failed` names collections that cannot be opened, and the kind of error."""

    status: str = Field(examples=["ready"])
    failed: dict[str, str] = Field(default={})
