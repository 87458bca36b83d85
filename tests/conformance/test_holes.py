"""The 29 holes that the review of the protocol found, each with the tests that prove it closed.

A hole is closed when taking its fix out makes one of its tests fail.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import msgspec
import pytest

from tests.model.holes import HOLES as MODELLED

TESTS = Path(__file__).resolve().parents[1]
MODEL = ("model/test_protocol.py::test_the_hole_shows_without_its_fix",)
"""One test for each hole that is about the order of steps; `tests/model/holes.py` says which."""


class Hole(msgspec.Struct, frozen=True):
    """What was wrong, and the tests that prove it is not any more."""

    title: str
    tests: tuple[str, ...]
    cited_as: str = ""
    """The invariant by which the tests cite it, if not by its number."""


HOLES: dict[str, Hole] = {
    # ------------------------------------------------------------------------------------- ownership
    "H1": Hole(
        "renewal after expiry, reclaim racing renewal",
        (
            "conformance/test_lease.py::test_a_lease_that_ended_is_never_renewed",
            ("conformance/test_lease.py::test_a_renewal_under_way_when_the_lease_passes_is_passed_over_by_reclaim"),
            "conformance/test_lease.py::test_a_renewal_that_waited_for_a_reclaim_is_told_that_the_lease_ended",
            *MODEL,
        ),
    ),
    "H2": Hole(
        "orphaned claim",
        (
            "conformance/test_lease.py::test_a_burial_waits_for_a_claim_under_way_and_frees_its_rows",
            "conformance/test_lease.py::test_a_claim_that_waited_for_a_burial_takes_nothing",
            "conformance/test_lease.py::test_a_delivery_in_flight_whose_worker_has_no_row_is_freed",
            *MODEL,
        ),
    ),
    "H3": Hole(
        "ambiguous claim",
        (
            "conformance/test_lease.py::test_a_claim_whose_reply_was_lost_is_found_and_released",
            "conformance/test_settle.py::test_a_claim_with_an_unknown_outcome_may_be_repeated",
            *MODEL,
        ),
    ),
    "H4": Hole(
        "token reused",
        (
            "conformance/test_fence.py::test_a_token_works_once",
            "conformance/test_fence.py::test_a_timed_out_attempt_that_returns_later_cannot_undo_its_abort",
            "conformance/test_settle.py::test_a_settle_with_an_unknown_outcome_may_be_repeated",
            "conformance/test_settle.py::test_a_whole_batch_with_an_unknown_outcome_may_be_repeated",
            "conformance/test_settle.py::test_a_release_with_an_unknown_outcome_may_be_repeated",
            *MODEL,
        ),
    ),
    "H5": Hole(
        "epoch goes back",
        ("conformance/test_lease.py::test_the_same_epoch_in_the_hands_of_another_worker_is_fenced", *MODEL),
    ),
    "H6": Hole(
        "poison kills neighbours",
        (
            "conformance/test_lease.py::test_a_poison_message_in_a_batch_of_500_costs_its_neighbours_nothing",
            "conformance/test_lanes.py::test_a_head_that_kills_its_workers_takes_no_other_lane_along",
            *MODEL,
        ),
    ),
    "H7": Hole(
        "max_processing against prefetch",
        (
            ("conformance/test_lease.py::test_reclaim_never_touches_the_rows_of_a_live_worker_however_old_their_claim"),
            *MODEL,
        ),
    ),
    "H8": Hole(
        "lease kept by a dead loop",
        ("engine/test_life.py::test_H8_a_loop_that_never_turns_loses_its_lease_and_says_so", *MODEL),
    ),
    "H9": Hole(
        "I12 promises too much",
        ("engine/test_life.py::test_H9_nothing_is_started_after_the_lease_can_have_ended", *MODEL),
    ),
    "H10": Hole(
        "drain",
        (
            "conformance/test_lease.py::test_the_last_act_of_a_drain_frees_everything_owned_known_or_not",
            "engine/test_life.py::test_H10_a_claim_under_way_when_draining_begins_is_awaited_and_given_back",
            *MODEL,
        ),
    ),
    "H11": Hole(
        "settle stuck or deadlocked by one row",
        (
            ("conformance/test_settle.py::test_a_caller_that_holds_one_row_does_not_hold_up_the_settle_of_499_others"),
            ("conformance/test_settle.py::test_two_workers_that_share_ledger_keys_in_opposite_order_never_deadlock"),
            "conformance/test_settle.py::test_a_database_that_is_locked_as_a_whole_is_not_tried_row_by_row",
            "conformance/test_operate.py::test_what_somebody_else_is_changing_is_passed_over",
            "conformance/test_lanes.py::test_cancelling_a_head_and_claiming_its_lane_at_once_do_not_deadlock",
        ),
    ),
    # ------------------------------------------------------------------------------- ledger, publish
    "H12": Hole(
        "fan-out",
        (
            "conformance/test_ledger.py::test_a_keyed_message_to_three_destinations_is_sent_three_times",
            "conformance/test_ledger.py::test_also_when_the_first_is_settled_before_the_second_is_claimed",
            "conformance/test_ledger.py::test_a_key_belongs_to_its_topic",
            *MODEL,
        ),
    ),
    "H13": Hole(
        "where the ledger is checked",
        (
            "conformance/test_ledger.py::test_a_zombies_success_is_recorded_though_its_row_is_lost",
            "conformance/test_lease.py::test_at_the_last_loss_the_ledger_is_asked_before_giving_up",
            "engine/test_life.py::test_H13_what_the_ledger_cannot_tell_now_is_given_back_and_costs_no_slot",
            "engine/test_life.py::test_H13_the_effect_entry_is_read_again_just_before_a_send",
            *MODEL,
        ),
    ),
    "H14": Hole(
        "one-statement publish returns nothing",
        (
            "conformance/test_ledger.py::test_64_publishers_racing_for_a_key_reserve_it_once",
            "conformance/test_ledger.py::test_a_loser_waits_for_the_winners_commit_and_gets_its_message",
            "conformance/test_ledger.py::test_a_repeatable_read_caller_is_told_to_try_its_transaction_again",
        ),
    ),
    "H15": Hole(
        "reopening",
        (
            "conformance/test_ledger.py::test_a_duplicate_of_a_dead_letter_reopens_it_by_policy",
            "conformance/test_ledger.py::test_publishers_that_reopen_at_once_reopen_once",
            "conformance/test_ledger.py::test_the_second_publisher_finds_it_reopened_by_the_first",
            "conformance/test_ledger.py::test_failed_then_replayed_then_succeeded",
            *MODEL,
        ),
    ),
    "H16": Hole(
        "ledger TTL",
        (
            "conformance/test_ledger.py::test_entries_live_48_hours_after_the_delivery_succeeded",
            "conformance/test_ledger.py::test_entries_are_kept_while_a_dead_letter_has_the_key",
            "conformance/test_ledger.py::test_entries_are_kept_while_a_delivery_waits_longer_than_48_hours",
            ("conformance/test_ledger.py::test_an_effect_entry_lives_48_hours_after_the_last_delivery_it_settled"),
            *MODEL,
        ),
    ),
    "H17": Hole(
        "prune against fan-out and replay",
        (
            "conformance/test_prune.py::test_a_message_that_still_has_a_delivery_is_never_pruned",
            "conformance/test_prune.py::test_a_message_goes_once_its_last_delivery_is_done_and_it_is_old",
            ("conformance/test_prune.py::test_a_prune_that_is_not_committed_yet_holds_up_neither_settle_nor_replay"),
            "conformance/test_prune.py::test_prune_beside_settles_and_replays_loses_nothing",
            *MODEL,
        ),
    ),
    "H18": Hole(
        "no route, no row",
        (
            "conformance/test_bad_input.py::test_a_topic_without_a_route_is_an_error",
            "conformance/test_bad_input.py::test_a_topic_without_a_route_is_a_dead_letter_by_policy",
            *MODEL,
        ),
    ),
    "H19": Hole(
        "default now()",
        (
            ("conformance/test_settle.py::test_a_publish_late_in_a_long_transaction_counts_from_its_own_statement"),
            "conformance/test_settle.py::test_an_hour_in_the_callers_transaction_does_not_shorten_a_delay",
            (
                "conformance/test_claim.py"
                "::test_while_positions_find_work_rows_behind_them_are_found_within_a_quarter_of_a_second"
            ),
        ),
    ),
    "H20": Hole(
        "the clock as an index bound",
        (
            "plans/test_plans.py::test_the_time_and_the_position_of_a_claim_are_bounds_of_its_index",
            "plans/test_plans.py::test_PostgreSQL_takes_the_intended_index_whatever_its_statistics",
            "conformance/test_claim.py::test_a_million_rows_that_cannot_run_cost_the_rest_nothing",
        ),
    ),
    # ------------------------------------------------------------------------------------------ rest
    "H21": Hole(
        "transactional handlers",
        (
            (
                "engine/test_transactional.py"
                "::test_H21_on_sqlite_such_a_handler_holds_the_write_lock_for_a_quarter_of_the_lease_at_most"
            ),
            "engine/test_transactional.py::test_I6_a_worker_that_lost_its_row_rolls_back",
            *MODEL,
        ),
    ),
    "H22": Hole(
        "cancel running",
        (
            "conformance/test_operate.py::test_cancelling_what_runs_asks_its_owner",
            "conformance/test_operate.py::test_a_done_that_came_first_wins_over_the_cancellation",
            "conformance/test_operate.py::test_a_cancelled_delivery_never_runs_again",
            "conformance/test_lease.py::test_a_worker_asked_to_stop_a_delivery_is_told_by_what_it_owns",
            *MODEL,
        ),
    ),
    "H23": Hole(
        "snooze",
        (
            "conformance/test_settle.py::test_snooze_gives_its_attempt_back_and_is_counted",
            "conformance/test_settle.py::test_snoozing_for_ever_ends_in_a_dead_letter",
        ),
    ),
    "H24": Hole(
        "breaker",
        (
            "conformance/test_claim.py::test_an_open_breaker_keeps_every_worker_away_and_burns_no_attempts",
            "conformance/test_claim.py::test_a_row_released_for_later_waits_until_then",
            "conformance/test_claim.py::test_a_million_rows_that_cannot_run_cost_the_rest_nothing",
            "engine/test_life.py::test_a_breaker_opens_for_all_workers_and_burns_no_attempts",
            "engine/test_life.py::test_a_paused_queue_is_left_alone_and_what_was_claimed_of_it_is_given_back",
        ),
    ),
    "H25": Hole(
        "notify only when a worker sleeps",
        (
            "engine/test_life.py::test_a_sleeping_worker_is_woken",
            "engine/test_wakeup.py::test_MEND_3_a_renewal_leaves_the_state_alone",
            "engine/test_wakeup.py::test_MEND_3_a_renewal_meets_the_claimer_on_the_row",
            "engine/test_wakeup.py::test_MEND_3_a_new_incarnation_announces_its_sleep_anew",
            "engine/test_wakeup.py::test_MEND_3_a_lost_reply_leaves_the_state_unknown_and_it_is_written_again",
            "engine/test_wakeup.py::test_MEND_3_a_notice_looks_everywhere_whatever_looks_have_cost",
            "engine/test_wakeup.py::test_MEND_3_a_worker_that_has_said_it_sleeps_looks_everywhere_once_more",
            "engine/test_wakeup.py::test_MEND_3_a_worker_polls_soon_after_it_has_said_that_it_sleeps",
        ),
    ),
    "H26": Hole(
        "two SQLite libraries",
        (
            "sqlite/test_one_library.py::test_a_file_that_another_library_holds_is_not_opened",
            "sqlite/test_one_library.py::test_a_library_that_comes_later_stops_the_next_write",
            ("sqlite/test_callers_connection.py::test_a_connection_that_does_not_wait_for_the_disk_is_warned_about"),
        ),
    ),
    "H27": Hole(
        "history partitions",
        ("conformance/test_prune.py::test_a_missing_partition_does_not_fail_a_settle_and_is_reported",),
    ),
    "H28": Hole(
        "hash-chained audit",
        ("conformance/test_operate.py::test_two_audited_acts_do_not_wait_for_each_other",),
    ),
    "H29": Hole(
        "identity order is not commit order",
        (
            "conformance/test_lanes.py::test_publishers_of_one_lane_take_turns_until_they_commit",
            "conformance/test_lanes.py::test_fifo_under_concurrent_publishers_that_commit_out_of_order",
            "conformance/test_lanes.py::test_fifo_under_concurrent_publishers_on_sqlite",
        ),
        cited_as="I10",
    ),
}


@cache
def found_in(path: str) -> dict[str, str]:
    """The tests of a file with their docstrings. Read, not imported: a file may need what is not installed here."""
    tree = ast.parse((TESTS / path).read_text("utf-8"))
    return {
        node.name: ast.get_docstring(node) or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def test_every_hole_of_the_review_is_here() -> None:
    assert list(HOLES) == [f"H{number}" for number in range(1, 30)]


@pytest.mark.parametrize("number", HOLES)
def test_what_proves_a_hole_closed_exists_and_cites_it(number: str) -> None:
    hole = HOLES[number]
    assert hole.tests, "a hole without a test is open"
    for test in hole.tests:
        path, _, name = test.partition("::")
        assert name in found_in(path), f"{test} is gone"
        if test not in MODEL:
            assert re.search(rf"\b{hole.cited_as or number}\b", found_in(path)[name]), f"{test} does not cite {number}"


def test_the_model_has_every_hole_that_is_said_to_be_in_it() -> None:
    modelled = {hole.number.rstrip("+") for hole in MODELLED if hole.number.startswith("H")}
    assert modelled == {number for number, hole in HOLES.items() if MODEL[0] in hole.tests}
