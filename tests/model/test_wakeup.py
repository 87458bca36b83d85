"""The wake-up, searched: with all fixes no message waits for a late poll; each fix taken out lets one wait (H25)."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.model.wakeup import Wakeup, search, without

SHORTEST = {
    "renewal_leaves_state": 7,
    "state_is_of_incarnation": 6,
    "lost_reply_is_unknown": 4,
    "looks_after_idle": 4,
    "looks_everywhere": 5,
    "looks_after_finding": 5,
}
"""Each fix, and how many steps it takes without it until a message waits."""


def test_MEND_3_no_message_waits_for_a_late_poll() -> None:
    found = search(Wakeup())
    assert found.wrong is None, "\n".join(found.way)
    assert found.states > 1000, "the search was not exhaustive"


@pytest.mark.parametrize("fix", [field.name for field in fields(Wakeup)])
def test_MEND_3_a_message_waits_without_the_fix(fix: str) -> None:
    found = search(without(fix))
    assert found.wrong is not None, f"{fix} may be taken out and nothing breaks"
    assert len(found.way) == SHORTEST[fix], "\n".join(found.way)
