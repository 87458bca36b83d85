"""Runs of workflows, searched: nothing is stuck, repeated, doubled, lost or left behind, and each fix is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.model import flow_children, flow_counters, flow_lanes, flow_restarts, flow_rewinds, flow_waits, flows
from tests.model.breadth_first import Found


@dataclass(frozen=True)
class Searched:
    """A model: its search with all fixes, its search without one, and what happens without each."""

    whole: Callable[[], Found]
    without: Callable[[str], Found]
    breaks: dict[str, str]
    floor: int
    """A search that was exhaustive has seen at least so many states."""


def children(mode: flow_children.Mode, breaks: dict[str, str]) -> Searched:
    return Searched(
        lambda: flow_children.search(flow_children.Children(), mode),
        lambda fix: flow_children.search(flow_children.without(fix), mode),
        breaks,
        10_000,
    )


CHILDREN = {
    "begun_in_one_commit": "twice",
    "ends_call": "stuck",
    "calls_stay": "stuck",
    "stored_before_it_acts": "changed",
    "undo_waits": "late",
}

MODELS = {
    "R2 R3 R4 a run": Searched(
        lambda: flows.search(flows.Flows()),
        lambda fix: flows.search(flows.without(fix)),
        {
            "signals_call": "stuck",
            "calls_stay": "stuck",
            "steps_are_fenced": "repeated",
            "fence_locks": "late",
            "undo_opens": "unpaid",
        },
        4000,
    ),
    "R2 R3 a wait with a time limit": Searched(
        lambda: flow_waits.search(flow_waits.Waits()),
        lambda fix: flow_waits.search(flow_waits.without(fix)),
        {
            "looks_once_more": "passed over",
            "take_asks_first": "both",
            "take_is_one_commit": "lost",
            "time_out_is_fenced": "both",
            "signals_call": "stuck",
        },
        20_000,
    ),
    "R2 R5 R11 gather": children(
        "gather",
        {
            **CHILDREN,
            "replayed_ends_call": "stuck",
            "kept_before_removed": "forgotten",
            "kept_read_last": "forgotten",
        },
    ),
    "R2 R5 R11 race": children(
        "race",
        {**CHILDREN, "first_end_calls": "stuck", "kept_before_removed": "stuck", "kept_read_last": "stuck"},
    ),
    "R3 R5 R12 rewind, replay and undo": Searched(
        lambda: flow_rewinds.search(flow_rewinds.Rewinds()),
        lambda fix: flow_rewinds.search(flow_rewinds.without(fix)),
        {
            "acts_lock": "revived",
            "undo_is_final": "revived",
            "steps_are_fenced": "old result",
            "rewound_are_renamed": "repeated",
            "signals_are_freed": "stuck",
            "rewind_is_one_commit": "stuck",
            "children_are_cancelled": "orphan",
        },
        3000,
    ),
    "R6 counters": Searched(
        lambda: flow_counters.search(flow_counters.Counters()),
        lambda fix: flow_counters.search(flow_counters.without(fix)),
        {
            "progress_sets_one": "uneven",
            "progress_resets_lost": "given up too early",
            "progress_reaches_the_claim": "given up too early",
            "parking_gives_back": "uneven",
            "parking_resets_lost": "given up too early",
            "losing_gives_back": "uneven",
        },
        300,
    ),
    "R2 R7 a run that holds its lane": Searched(
        lambda: flow_lanes.search(flow_lanes.Lanes()),
        lambda fix: flow_lanes.search(flow_lanes.without(fix)),
        {
            "claims_in_order": "overtaken",
            "parked_gives_back": "overtaken",
            "waking_refreshes": "stuck",
            "woken_in_one_commit": "stuck",
            "ends_refresh": "stuck",
            "looks_under_lock": "stuck",
        },
        2000,
    ),
    "R14 restart": Searched(
        lambda: flow_restarts.search(flow_restarts.Restarts()),
        lambda fix: flow_restarts.search(flow_restarts.without(fix)),
        {
            "one_commit": "two",
            "publish_is_fenced": "undone",
            "key_without_arguments": "two",
            "restarted_is_not_rewound": "two",
            "restarted_is_not_undone": "undone",
        },
        900,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_protocol_of_workflows_holds(name: str) -> None:
    found = MODELS[name].whole()
    assert found.wrong is None, "\n".join((found.wrong or "", *found.way))
    assert found.states > MODELS[name].floor, "the search was not exhaustive"


@pytest.mark.parametrize(("name", "fix"), [(name, fix) for name, model in MODELS.items() for fix in model.breaks])
def test_each_fix_of_workflows_is_needed(name: str, fix: str) -> None:
    found = MODELS[name].without(fix)
    assert found.wrong == MODELS[name].breaks[fix], f"{fix}: {found}"


def test_every_fix_is_taken_out_in_some_search() -> None:
    switches = (
        flows.Flows, flow_waits.Waits, flow_children.Children, flow_rewinds.Rewinds, flow_counters.Counters,
        flow_restarts.Restarts, flow_lanes.Lanes,
    )  # fmt: skip
    known = {fix for model in MODELS.values() for fix in model.breaks}
    assert {field for switch in switches for field in switch.__dataclass_fields__} == known
