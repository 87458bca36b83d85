"""The objects that every endpoint uses."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from todoku.api.auth import Gate
from todoku.api.condition import Condition
from todoku.app import App
from todoku.core.settings import Settings
from todoku.engine.diagnostics.shared_numbers import SharedNumbers
from todoku.engine.diagnostics.verification_task import VerificationTask
from todoku.engine.group_commit import GroupCommit
from todoku.engine.outbox import Outbox
from todoku.store.store import Store


class RequestContext(msgspec.Struct, frozen=True):
    """An App, the gate that admits requests, the group commit of concurrent publishes, and the numbers that all viewers
    share. Its calls block."""

    box: App
    gate: Gate
    group_commit: GroupCommit
    numbers: SharedNumbers
    verification: VerificationTask = msgspec.field(default_factory=VerificationTask)
    condition: Callable[[], Condition] | None = None
    """Returns the condition of the daemon that serves the request; None: another program serves it."""

    @property
    def store(self) -> Store:
        """The App's store."""
        return self.box.store

    @property
    def outbox(self) -> Outbox:
        """The App's outbox."""
        return self.box.outbox

    @property
    def settings(self) -> Settings:
        """The App's settings."""
        return self.box.settings
