"""One hole: what is taken out of the protocol, and what breaks then; and the messages that holes are shown with."""

from __future__ import annotations

from dataclasses import dataclass

from tests.model.scenario import Message, Scenario
from tests.model.state import Budget

NOTHING = Budget()
PLAIN = (Message(),)
KEYED = (Message(key="k"),)
FANNED_OUT = (Message(key="k", destinations=("mail", "shop")),)
POISONED = (Message(poison=True), Message())
SAME_KEY = (Message(key="k"), Message(key="k", scope="another topic"))
OTHER_DIGEST = (Message(key="k"), Message(key="k", scope="another topic", digest="another body"))


@dataclass(frozen=True)
class Hole:
    """One hole: its number and title, the fixes taken out, the invariant that breaks, and the smallest scope."""

    number: str
    title: str
    out: tuple[str, ...]
    breaks: str
    length: int  # steps of the shortest trace
    messages: tuple[Message, ...]
    budget: Budget = NOTHING
    renewal_in_flight: bool = False
    hangs: bool = False
    reserves_at_claim: bool = False

    @property
    def scenario(self) -> Scenario:
        """The scope in which the hole shows, and in which the protocol with all its fixes holds."""
        return Scenario(
            f"{self.number} {self.title}",
            self.messages,
            self.budget,
            batch=2 if len(self.messages) > 1 or len(self.messages[0].destinations) > 1 else 1,
            renewal_in_flight=self.renewal_in_flight,
            hangs=self.hangs,
            reserves_at_claim=self.reserves_at_claim,
        )

    def row(self) -> str:
        """The hole as a row of the table in docs/model.md."""
        out = ", ".join(f"`{fix}`" for fix in self.out)
        return f"| {self.number} {self.title} | {out} | `{self.breaks}` | {self.length} |"
