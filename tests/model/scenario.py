"""The scope of one search: which messages there are, where they go, and how much may go wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.model.state import Budget


@dataclass(frozen=True)
class Message:
    """A message of the scenario. Without a key there is no ledger entry for it."""

    key: str = ""
    digest: str = "body"
    scope: str = "topic"
    destinations: tuple[str, ...] = ("shop",)
    poison: bool = False  # executing it kills the process
    transactional: bool = False  # its handler writes through the transaction that settles it
    late_destinations: tuple[str, ...] = ()  # routes added after the publish (late fan-out)


@dataclass(frozen=True)
class Scenario:
    """Two workers, a few messages, and how often each disturbance may happen."""

    name: str
    messages: tuple[Message, ...]
    budget: Budget = field(default_factory=Budget)
    workers: int = 2
    batch: int = 2
    max_attempts: int = 2
    lost_limit: int = 2  # 3 in the product: one less shows the same and keeps the space small
    renewal_in_flight: bool = False  # a lease may also end while its renewal is not yet committed
    hangs: bool = False  # a process may also hang instead of crash
    reserves_at_claim: bool = False  # the effect entry is reserved by the claim itself, not just before sending
