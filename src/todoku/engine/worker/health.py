"""The state of a worker, as health checks and the supervisor see it."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

import msgspec

State = Literal["starting", "running", "draining", "stopped"]
"""`draining` also means: an operator drained it from afar, and it claims nothing until it is resumed."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a worker, as health checks and the supervisor see it."""

    state: State
    worker_id: UUID
    database_ok: bool
    tripped: bool
    blocked: str | None
    held: int
    running: int
    settled: int
    breakers: tuple[str, ...]
    pings: tuple[str, ...]
