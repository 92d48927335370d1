"""How one server works. `attend_service.__main__` alone reads the environment and fills this in."""

from __future__ import annotations

from dataclasses import dataclass

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True)
class ServiceSettings:
    """Settings of a server.

    Attributes:
        max_body: the largest request body that is read, in bytes.
        trusted_hosts: names that the `Host` header may hold; None for any. A server that only
            this machine can reach is thereby closed to web pages whose own name was made to
            point here (DNS rebinding).
        max_jobs: trainings that may wait for their turn.
        max_collections: collections that clients may make.
        require_keys: ask for a key even while there are none.
        recall, exact_below: what the indexes of collections must do whose makers say nothing of
            it (`attend.keys.Wanted`).
        read_only: refuse what would change something.
        log_texts: also log what is sent with a request.
        cors_origins: origins whose pages may read and write.
        picture_origins: origins from which pages show the pictures that documents name.
    """

    max_body: int = 64 * MEBIBYTE
    trusted_hosts: tuple[str, ...] | None = None
    max_jobs: int = 16
    max_collections: int = 1000
    require_keys: bool = False
    cors_origins: tuple[str, ...] = ()
    picture_origins: tuple[str, ...] = ()
    recall: float = 0.95
    exact_below: int | None = None
    read_only: bool = False
    log_texts: bool = False
