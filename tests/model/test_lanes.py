"""The lane, searched: with all fixes no key has two workers and no delivery is stranded; each fix is needed (I10)."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.model.lanes import Lanes, search, without

BREAKS = {
    "publishers_lock": "shared",
    "claims_in_order": "shared",
    "touched_head_looks": "shared",
    "drop_locks": "stranded",
    "drop_looks_again": "stranded",
}
"""Each fix, and what happens without it."""


def test_I10_a_key_has_one_worker_and_no_delivery_is_stranded() -> None:
    found = search(Lanes())
    assert found.wrong is None, "\n".join((found.wrong or "", *found.way))
    assert found.states > 1000, "the search was not exhaustive"


@pytest.mark.parametrize("fix", [field.name for field in fields(Lanes)])
def test_I10_each_fix_is_needed(fix: str) -> None:
    found = search(without(fix))
    assert found.wrong == BREAKS[fix], f"{fix}: {found}"
