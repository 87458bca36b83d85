"""The run of a workflow, searched: nothing is stuck, repeated, doubled or left behind, and each fix is needed."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.model.flows import Flows, search, without

BREAKS = {
    "signals_call": "stuck",
    "calls_stay": "stuck",
    "steps_are_fenced": "repeated",
    "fence_locks": "late",
    "undo_opens": "unpaid",
}
"""Each fix, and what happens without it."""


def test_R2_R3_R4_no_run_is_stuck_and_no_step_is_repeated_doubled_or_left_behind() -> None:
    found = search(Flows())
    assert found.wrong is None, "\n".join((found.wrong or "", *found.way))
    assert found.states > 1000, "the search was not exhaustive"


@pytest.mark.parametrize("fix", [field.name for field in fields(Flows)])
def test_R2_R3_R4_each_fix_is_needed(fix: str) -> None:
    found = search(without(fix))
    assert found.wrong == BREAKS[fix], f"{fix}: {found}"
