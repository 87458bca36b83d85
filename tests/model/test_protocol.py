"""The model of the protocol, searched: with all fixes nothing breaks; each fix taken out brings its hole back.

`python -m tests.model` prints the figures of docs/model.md; a failing search prints its shortest trace.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.model.canonical import canonical
from tests.model.fixes import Fixes
from tests.model.hole import KEYED, PLAIN, SAME_KEY, Hole
from tests.model.holes import HOLES
from tests.model.invariants import STATE_CHECKS, STEP_CHECKS, i4_epoch_rises
from tests.model.model import Model
from tests.model.protocol import successors
from tests.model.scenario import Scenario
from tests.model.scopes import DEEP, SCOPES, Scope
from tests.model.search import Report, look_for, search
from tests.model.sentences import SENTENCES, tell
from tests.model.state import Budget, State

QUICK = ("a poison, replayed", "time-outs and replies")
"""The deeper scopes that every run searches; TODOKU_TEST_DEEP=1 (`make model`) searches all of them."""


def story(model: Model, report: Report) -> str:
    return tell(model, report.violation) if report.violation else ""


def holds(scope: Scope) -> None:
    model = Model(scope.scenario)
    report = search(model)
    assert report.violation is None, story(model, report)
    assert report.states >= scope.floor
    assert [event for event in scope.reaches if not report.events[event]] == []
    assert set(report.events) <= set(SENTENCES)


@pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: scope.scenario.name)
def test_the_protocol_holds(scope: Scope) -> None:
    holds(scope)


# Four minutes of searching, and only a change of the model or of these scopes can change what is found.
SEARCHED = (
    DEEP if os.environ.get("TODOKU_TEST_DEEP") else tuple(scope for scope in DEEP if scope.scenario.name in QUICK)
)


@pytest.mark.slow
@pytest.mark.parametrize("scope", SEARCHED, ids=lambda scope: scope.scenario.name)
def test_the_protocol_holds_in_a_deeper_scope(scope: Scope) -> None:
    holds(scope)


@pytest.mark.parametrize("hole", HOLES, ids=lambda hole: f"{hole.number} {hole.title}")
def test_the_hole_shows_without_its_fix(hole: Hole) -> None:
    model = Model(hole.scenario, Fixes().without(*hole.out))
    report = look_for(hole.breaks, model)
    assert report.violation is not None, f"{hole.out} may be taken out and nothing breaks"
    assert report.violation.check == hole.breaks
    assert len(report.violation.path) - 1 == hole.length, story(model, report)
    assert story(model, report).count("\n") == hole.length  # every step has its sentence


# Several holes show in the same scope: there the whole protocol is searched once.
CONTROLS = {replace(hole.scenario, name=""): hole for hole in HOLES}


@pytest.mark.parametrize("hole", CONTROLS.values(), ids=lambda hole: f"{hole.number} {hole.title}")
def test_the_scope_of_the_hole_holds_with_all_fixes(hole: Hole) -> None:
    model = Model(hole.scenario)
    report = search(model)
    assert report.violation is None, story(model, report)


# One of two lines of defence taken out, and why the other is enough. Both stay in the protocol.
SECOND_LINES = {
    "renew_only_live": "reclaim deletes the worker row before it frees anything: what can be renewed was not reclaimed",
    "drain_awaits_claim": "the last act ends the lease, and a claim without its worker row takes nothing",
    "rereads_before_sending": "the reservation just before sending reads too",
    "fence_has_worker": "epoch rises at every change, so a number is never met twice (as long as none is forgotten)",
    "settle_raises_epoch": "the owner is cleared, and the fence asks for it",
    "release_raises_epoch": "the owner is cleared, and the fence asks for it",
    "reclaim_raises_epoch": "the owner is cleared, and the fence asks for it",
    "cancel_raises_epoch": "a waiting row has no owner, so no token fits it",
    "replay_raises_epoch": "a dead letter has no owner, so no token fits it",
}


@pytest.mark.parametrize("fix", SECOND_LINES)
@pytest.mark.parametrize(
    "scenario",
    [
        Scenario("owners", KEYED, Budget(lapses=1, ambiguous=1), batch=1, renewal_in_flight=True),
        Scenario("people", PLAIN, Budget(failures=1, cancels=1, replays=1, timeouts=1), batch=1),
        Scenario("leaving", PLAIN, Budget(drains=1, ambiguous=1), batch=1),
        Scenario("one key twice", SAME_KEY),
    ],
    ids=lambda scenario: scenario.name,
)
def test_one_line_of_defence_is_enough(fix: str, scenario: Scenario) -> None:
    model = Model(scenario, Fixes().without(fix))
    # That epoch rises *is* one of the lines: without it only the consequences count.
    report = search(model, step_checks=[check for check in STEP_CHECKS if check is not i4_epoch_rises])
    assert report.violation is None, story(model, report)


def test_every_fix_closes_a_hole() -> None:
    taken_out = {fix for hole in HOLES for fix in hole.out}
    assert {field.name for field in fields(Fixes)} - taken_out == set()


def test_the_page_shows_every_hole() -> None:
    page = (Path(__file__).parents[2] / "docs" / "model.md").read_text(encoding="utf-8")
    assert [hole.title for hole in HOLES if hole.row() not in page] == []


def test_every_check_finds_a_hole() -> None:
    broken = {hole.breaks for hole in HOLES}
    # The first says of a state what i9_terminal_is_final says of the step before it; the second guards the model:
    # no switch makes a draining worker claim.
    assert {check.__name__ for check in (*STATE_CHECKS, *STEP_CHECKS)} - broken == {
        "i9_replays_are_audited",
        "i11_draining_never_claims",
    }


# --- the machinery ------------------------------------------------------------------------------------------------

SMALL = [
    (Scenario("crashes and replies", KEYED, Budget(crashes=1, lapses=1, ambiguous=1, drains=1), batch=1), 9),
    (Scenario("two lapses", KEYED, Budget(lapses=2, timeouts=1), batch=1, renewal_in_flight=True), 13),
    (Scenario("two deliveries", SAME_KEY, Budget(lapses=1, failures=1)), 10),
]


def reached(model: Model, depth: int, form: Callable[[State], State]) -> set[State]:
    """Every state within so many steps, each kept in a form of its own."""
    frontier = {form(model.initial())}
    seen = set(frontier)
    for _ in range(depth):
        frontier = {form(after) for before in frontier for _, after in successors(model, before)} - seen
        seen |= frontier
    return seen


@pytest.mark.parametrize(("scenario", "depth"), SMALL, ids=lambda value: getattr(value, "name", ""))
def test_canonical_states_stand_for_all_states(scenario: Scenario, depth: int) -> None:
    model = Model(scenario)
    true_names = reached(model, depth, lambda state: state)
    worn_off = reached(model, depth, lambda state: canonical(model, state))
    assert {canonical(model, state) for state in true_names} == worn_off
    assert len(true_names) > 3 * len(worn_off)
    assert [state for state in worn_off if canonical(model, state) != state] == []
