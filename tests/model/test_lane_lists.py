"""A lane claimed by list, searched: with all fixes its order and owner hold; each fix is needed (I1, I3, I10, H22)."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.model.lane_lists import LaneLists, search, without

BREAKS = {
    "deliveries_after_lane": "stolen",
    "lists_block": "stolen",
    "rows_are_locked": "broken word",
    "heads_are_looked_up": "shared",
    "touched_head_looks": "shared",
    "written_out_is_touched": "shared",
    "settles_are_fenced": "stolen",
}
"""Each fix, and what happens without it."""


def test_I10_a_lane_claimed_by_list_has_one_worker_in_order() -> None:
    found = search(LaneLists())
    assert found.wrong is None, "\n".join((found.wrong or "", *found.way))
    assert found.states > 50_000, "the search was not exhaustive"


@pytest.mark.parametrize("fix", [field.name for field in fields(LaneLists)])
def test_I10_each_fix_of_lanes_claimed_by_list_is_needed(fix: str) -> None:
    found = search(without(fix))
    assert found.wrong == BREAKS[fix], f"{fix}: {found}"
