"""Claims by list, searched: with all fixes one worker owns a delivery; each fix is needed (I1, I3, H22)."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.model.claim_lists import Lists, search, without

BREAKS = {
    "claims_look_again": "shared",
    "acts_lock_first": "broken word",
    "settles_are_fenced": "stolen",
    "reclaim_writes_out": "forgotten",
}
"""Each fix, and what happens without it."""


def test_I3_a_listed_delivery_has_one_owner_and_is_never_forgotten() -> None:
    found = search(Lists())
    assert found.wrong is None, "\n".join((found.wrong or "", *found.way))
    assert found.states > 5000, "the search was not exhaustive"


@pytest.mark.parametrize("fix", [field.name for field in fields(Lists)])
def test_I3_each_fix_of_claims_by_list_is_needed(fix: str) -> None:
    found = search(without(fix))
    assert found.wrong == BREAKS[fix], f"{fix}: {found}"
