"""The checker is tested before it is believed: each planted fault in a history is named, and a true history is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.checker import Evidence, Failed, Fault, Problem, Row, explained_duplicates, problems
from tests.support.lines import line_problems
from tests.support.receiver import Acknowledged, Began, Ended, Note

pytestmark = pytest.mark.crash


def arrival(
    pid: int, at: float, *, until: float | None = None, epoch: int | None = 1, outcome: str = "done", to: str = "mail",
    message: str = "m",
) -> list[Note]:  # fmt: skip
    """The notes of one attempt; `until` None: it never returned."""
    call = round(at * 1000)
    began = Began(message=message, destination=to, attempt=1, epoch=epoch, worker="w", pid=pid, at=at, call=call)
    return [began] if until is None else [began, Ended(pid, call, outcome, until)]


ACKNOWLEDGED = Acknowledged("m", ("mail",), 1, 0.0)
SUCCEEDED = Row(id=1, message="m", destination="mail", status="succeeded", epoch=1)
KILL = Fault("kill", 7, 1.4, 1.5)


def found(*notes: list[Note], rows: list[Row] | None = None, **more: Any) -> list[Problem]:
    """What the checker says of a message `m` to `mail` with these attempts."""
    evidence = Evidence(
        notes=[ACKNOWLEDGED, *(note for part in notes for note in part)],
        rows=[SUCCEEDED] if rows is None else rows,
        faults=more.pop("faults", ()),
        **more,
    )
    return problems(evidence)


def invariants(broken: list[Problem]) -> set[str]:
    return {problem.invariant for problem in broken}


# ------------------------------------------------------------------------------------------------- true histories


def test_a_message_that_arrived_once_is_no_problem() -> None:
    assert found(arrival(7, 1.0, until=1.1)) == []


def test_a_repetition_after_a_kill_is_no_problem_and_is_counted() -> None:
    notes = [ACKNOWLEDGED, *arrival(7, 1.0), *arrival(8, 2.0, until=2.1, epoch=3)]
    rows = [msgspec.structs.replace(SUCCEEDED, epoch=3)]
    evidence = Evidence(
        notes=notes, rows=rows, faults=[KILL], failed=[Failed(delivery=1, epoch=1, reason="WORKER_LOST")]
    )
    assert problems(evidence) == []
    assert explained_duplicates(evidence) == 1


def test_a_zombie_that_was_stopped_for_longer_than_its_lease_may_overlap() -> None:
    zombie = arrival(7, 1.0, until=9.0)
    stop = Fault("stop", 7, 1.2, 8.0)
    rows = [msgspec.structs.replace(SUCCEEDED, epoch=3)]
    assert found(zombie, arrival(8, 6.0, until=6.1, epoch=3), rows=rows, faults=[stop], lease=2.0) == []


def test_a_handler_that_asks_for_another_attempt_gets_one() -> None:
    first = arrival(7, 1.0, until=1.1, outcome="Retry")
    rows = [msgspec.structs.replace(SUCCEEDED, epoch=3, attempts=2)]
    failed = [Failed(delivery=1, epoch=1, reason="PLANNED")]
    assert found(first, arrival(7, 2.0, until=2.1, epoch=3), rows=rows, failed=failed) == []


# ---------------------------------------------------------------------------------------------- planted faults


def test_I1_a_planted_loss_is_named() -> None:
    assert found(rows=[]) == [Problem("I1", "was acknowledged and is lost", ("m", "mail"))]


def test_I1_one_lost_destination_of_two_is_named() -> None:
    fanned_out = Acknowledged("m", ("mail", "points"), 1, 0.0)
    broken = problems(Evidence(notes=[fanned_out, *arrival(7, 1.0, until=1.1)], rows=[SUCCEEDED], faults=()))
    assert broken == [Problem("I1", "was acknowledged and is lost", ("m", "points"))]


def test_I1_a_delivery_in_two_states_is_named() -> None:
    twice = [SUCCEEDED, msgspec.structs.replace(SUCCEEDED, status="pending")]
    sentences = [problem.sentence for problem in found(arrival(7, 1.0, until=1.1), rows=twice)]
    assert "is in 2 states at once: ['succeeded', 'pending']" in sentences


def test_I1_a_success_that_nobody_received_is_named() -> None:
    assert found() == [Problem("I1", "succeeded, and the receiver never saw it done", ("m", "mail"))]
    assert invariants(found(arrival(7, 1.0, until=1.1, outcome="ValueError"))) == {"I1"}


@pytest.mark.parametrize("status", ["sending", "pending", "failed", "aborted", "resting"])
def test_I1_what_is_not_done_at_the_end_is_named(status: str) -> None:
    left = [msgspec.structs.replace(SUCCEEDED, status=status)]
    assert invariants(found(arrival(7, 1.0, until=1.1), rows=left)) == {"I1"}


def test_I1_an_arrival_of_something_that_was_never_stored_is_named() -> None:
    broken = found(arrival(7, 1.0, until=1.1), arrival(7, 2.0, until=2.1, message="ghost"))
    assert broken == [Problem("I1", "arrived, and the database does not know it", ("ghost", "mail"))]


def test_I13_an_unexplained_duplicate_is_named() -> None:
    rows = [msgspec.structs.replace(SUCCEEDED, epoch=3)]
    broken = found(arrival(7, 1.0, until=1.1), arrival(8, 2.0, until=2.1, epoch=3), rows=rows)
    assert invariants(broken) == {"I13"}


@pytest.mark.parametrize(
    "fault",
    [
        Fault("kill", 9, 1.4, 1.5),  # somebody else's
        Fault("kill", 7, 2.5, 2.6),  # too late: it had arrived again by then
        Fault("stop", 7, 1.2, 1.3),  # too short to cost a lease of 2 s
        Fault("cut", 7, 0.1, 0.2),  # before it began
    ],
)
def test_I13_a_fault_that_did_not_cause_it_explains_nothing(fault: Fault) -> None:
    rows = [msgspec.structs.replace(SUCCEEDED, epoch=3)]
    broken = found(
        arrival(7, 1.0, until=1.1), arrival(8, 2.0, until=2.1, epoch=3), rows=rows, faults=[fault], lease=2.0
    )
    assert invariants(broken) == {"I13"}


def test_I3_two_owners_at_the_same_time_are_named() -> None:
    """A kill explains a repetition, but not one that began while the first owner was still at it."""
    rows = [msgspec.structs.replace(SUCCEEDED, epoch=3)]
    kill = Fault("kill", 7, 3.0, 3.1)
    broken = found(arrival(7, 1.0), arrival(8, 2.0, until=2.1, epoch=3), rows=rows, faults=[kill])
    assert Problem("I3", "ran in 7 and 8 at the same time", ("m", "mail")) in broken


def test_I3_a_token_that_ran_twice_is_named_whatever_happened() -> None:
    broken = found(arrival(7, 1.0), arrival(8, 2.0, until=2.1), faults=[KILL])
    assert Problem("I3", "ran 2 times by the same token, epoch 1", ("m", "mail")) in broken


def test_I4_an_epoch_that_fell_is_named() -> None:
    rows = [msgspec.structs.replace(SUCCEEDED, epoch=3)]
    broken = found(arrival(7, 1.0, epoch=3), arrival(8, 2.0, until=2.1, epoch=2), rows=rows, faults=[KILL])
    assert Problem("I4", "epoch 2 began after epoch 3", ("m", "mail")) in broken
    broken = found(arrival(8, 2.0, until=2.1, epoch=5), rows=rows)
    assert broken == [Problem("I4", "its epoch 3 is below 5, by which it ran", ("m", "mail"))]


def test_I6_a_doubled_a_missing_and_a_premature_effect_are_named() -> None:
    delivery = ("m", "mail")
    once = arrival(7, 1.0, until=1.1)
    transactional = frozenset({"mail"})
    assert found(once, effects=[delivery], transactional=transactional) == []
    assert found(once, effects=[delivery] * 2, transactional=transactional) == [
        Problem("I6", "took effect 2 times", delivery)
    ]
    assert found(once, transactional=transactional) == [Problem("I6", "succeeded without its effect", delivery)]
    dead = [msgspec.structs.replace(SUCCEEDED, status="aborted", reason="BAD")]
    broken = found(once, rows=dead, effects=[delivery], transactional=transactional, dead_for=frozenset({"BAD"}))
    assert broken == [Problem("I6", "took effect and has not succeeded", delivery)]


def test_I4_attempts_that_do_not_add_up_are_named() -> None:
    once = arrival(7, 1.0, until=1.1)
    burnt = [msgspec.structs.replace(SUCCEEDED, attempts=3)]
    assert invariants(found(once, rows=burnt)) == {"I4"}
    too_many = [msgspec.structs.replace(SUCCEEDED, attempts=7, status="aborted", reason="BAD")]
    assert invariants(found(once, rows=too_many, dead_for=frozenset({"BAD"}))) == {"I4"}


@pytest.mark.parametrize("reason", ["WORKER_LOST", "INTERRUPTED", "NETWORK"])
def test_I13_an_attempt_that_was_burnt_for_nothing_is_named(reason: str) -> None:
    attempts = 1 if reason == "WORKER_LOST" else 2
    rows = [msgspec.structs.replace(SUCCEEDED, epoch=3, attempts=attempts)]
    failed = [Failed(delivery=1, epoch=1, reason=reason)]
    named = [Problem("I13", f"burnt an attempt as {reason}, and no fault explains it", ("m", "mail"))]
    assert found(arrival(7, 1.0, until=1.1, epoch=3), rows=rows, failed=failed) == named
    before = arrival(7, 0.5, until=0.6, outcome="OSError")
    elsewhere = Fault("kill", 9, 0.7, 0.8)
    broken = found(before, arrival(7, 1.0, until=1.1, epoch=3), rows=rows, failed=failed, faults=[elsewhere])
    assert named[0] in broken


def test_I5_a_key_that_became_two_messages_is_named() -> None:
    again = Acknowledged("n", ("mail",), 1, 0.0, "key")
    notes: list[Note] = [Acknowledged("m", ("mail",), 1, 0.0, "key"), again]
    notes += [*arrival(7, 1.0, until=1.1), *arrival(7, 2.0, until=2.1, message="n")]
    rows = [SUCCEEDED, msgspec.structs.replace(SUCCEEDED, id=2, message="n")]
    broken = problems(Evidence(notes=notes, rows=rows, faults=()))
    assert broken == [Problem("I5", "one key was published as 2 messages", "key")]


# ------------------------------------------------------------------------------------------------------ log lines

LINE = (
    '{"event":"settled","ts":"2026-01-01T00:00:00Z","level":"info","correlation_id":null,"trace_id":null,'
    '"message_id":"m","outbox_id":1,"topic":"t","adapter":"a","status":"succeeded","attempts":1,"reason_code":null,'
    '"error_type":null,"idempotency_key_hash":null,"latency_ms":1.5,"worker":"4efebf98-f33e-4a11-a623-633b2454b61c"}'
)


def wrong(tmp_path: Path, text: str, *, killed: bool = False) -> list[str]:
    (tmp_path / "stderr").write_text(text)
    return line_problems([(tmp_path / "stderr", killed)], frozenset({"EXPECTED"}), {})[1]


def test_lines_as_designed_are_counted(tmp_path: Path) -> None:
    (tmp_path / "stderr").write_text(f"{LINE}\n")
    assert line_problems([(tmp_path / "stderr", False)], frozenset(), {}) == (1, [])
    assert wrong(tmp_path, '{"event":"EXPECTED","level":"error"}\n') == []


@pytest.mark.parametrize(
    "text",
    [
        LINE.replace('"attempts":1,', "") + "\n",  # a field is missing
        LINE.replace('"attempts":1,', '"attempts":1,"payload":{},') + "\n",  # one too many
        LINE.replace('"topic":"t","adapter":"a"', '"adapter":"a","topic":"t"') + "\n",  # another order
        LINE.replace('"attempts":1', '"attempts":"1"') + "\n",  # another type
        LINE.replace('"succeeded"', '"fine"') + "\n",  # a word that is no status
        f"{LINE}\n{LINE}\n",  # one delivery succeeded twice
        LINE.replace("succeeded", "failed") + "\n",  # a failure that is not on record
        "Traceback (most recent call last):\n",  # not JSON
        '{"event":"SETTLE_REFUSED","level":"error"}\n',  # an error that nobody expects
        LINE,  # half a line of a process that was not killed
    ],
)
def test_lines_that_are_not_as_designed_are_named(tmp_path: Path, text: str) -> None:
    assert len(wrong(tmp_path, text)) == 1


def test_the_last_line_of_a_killed_process_may_be_torn(tmp_path: Path) -> None:
    assert wrong(tmp_path, f"{LINE}\n{LINE[:40]}", killed=True) == []


@pytest.mark.parametrize(
    ("failures", "successes", "on_record", "unsure", "problems"),
    [
        (2, 1, 2, True, 0),  # MEND-8: the disk was full at two attempts, and both are on record
        (2, 0, 1, True, 0),  # one of them committed, and its worker could not ask
        (2, 1, 1, True, 1),  # nothing committed that was not told as such: one failure is told twice
        (3, 0, 1, True, 1),
        (2, 1, 1, False, 1),
    ],
)
def test_failures_are_told_as_often_as_they_are_on_record(
    tmp_path: Path, failures: int, successes: int, on_record: int, unsure: bool, problems: int
) -> None:
    failed = LINE.replace("succeeded", "failed")
    (tmp_path / "stderr").write_text(f"{failed}\n" * failures + f"{LINE}\n" * successes)
    files = [(tmp_path / "stderr", False)]
    assert len(line_problems(files, frozenset(), {1: on_record}, unsure={1} if unsure else ())[1]) == problems
