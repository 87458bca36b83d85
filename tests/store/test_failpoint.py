"""Failpoints: named, passed by every write of the store, and harmless unless armed."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID, uuid4

import pytest

import todoku
from tests.support.world import SOMEBODY, World, aborted
from todoku.core.alert import Raised
from todoku.core.capture import TableRule
from todoku.core.ending import Following, NewBatch
from todoku.core.errors import DatabaseUnavailable, InvalidSetting
from todoku.core.flow import StepRow
from todoku.core.limit import Limit
from todoku.core.outcome import Done
from todoku.core.schedule import Every, Plan
from todoku.engine.http import api_tokens, request_queues, signing_keys, url_groups
from todoku.engine.http.url_groups import EndpointName
from todoku.engine.schedule import declared, stored
from todoku.store import failpoint
from todoku.store.batches import begin
from todoku.store.capture_portions import Portion
from todoku.store.deliveries import Filter
from todoku.store.failpoint import NAMES, OPERATIONS, armed, kill, lose, reach, stop
from todoku.store.http_runs import NewRun
from todoku.store.projections import RebuildProgress
from todoku.store.publish import Publishing
from todoku.store.runs import signal as send_signal
from todoku.store.schedules import Firing
from todoku.store.sessions import Person
from todoku.testing.armed import _ACTIONS, arm_from

STORE = Path(todoku.__file__).parent / "store"


def test_a_failpoint_that_is_not_armed_does_nothing() -> None:
    for name in NAMES:
        reach(name)
    reach("nonsense")


def test_a_failpoint_acts_while_it_is_armed_and_no_longer() -> None:
    seen: list[str] = []
    with armed("settle.after_commit", lambda: seen.append("settled")):
        reach("settle.after_commit")
        reach("settle.before_commit")
        reach("claim.after_commit")
    reach("settle.after_commit")
    assert seen == ["settled"]


def test_it_is_disarmed_also_when_the_block_fails() -> None:
    with pytest.raises(DatabaseUnavailable), armed("claim.after_commit", lose):
        reach("claim.after_commit")
    reach("claim.after_commit")
    assert failpoint._armed == {}


@pytest.mark.parametrize("name", ["settle", "settle.after", "settle.after_comit", "nonsense.after_commit", ""])
def test_a_name_that_no_write_passes_is_refused(name: str) -> None:
    """A crash test with a misspelt failpoint would prove nothing, and be green."""
    with pytest.raises(InvalidSetting, match="is not a failpoint") as caught, armed(name, lose):
        pass
    assert caught.value.hint
    with pytest.raises(InvalidSetting, match="is not a failpoint"):
        arm_from({"TODOKU_FAILPOINTS": f"{name}=kill"})


def test_every_operation_has_a_failpoint_before_and_after_its_commit() -> None:
    assert {name.partition(".")[0] for name in NAMES} == OPERATIONS
    assert {name.partition(".")[2] for name in NAMES} == {"before_commit", "after_commit"}
    assert len(NAMES) == 2 * len(OPERATIONS)


WRITES = ("write", "write_alone", "_take", "_transaction")


def test_the_operations_that_the_store_names_are_those_that_can_be_armed() -> None:
    named: set[str] = set()
    for path in STORE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                first = node.args[0]
                if node.func.attr in WRITES and isinstance(first, ast.Constant):
                    named.add(str(first.value))
    assert named - {"read"} <= OPERATIONS
    # What a person does goes through one function, which names the operation after the act; a handler's own transaction
    # and a copy's are committed where they were opened.
    assert OPERATIONS - named <= {"replay", "cancel", "settle_by_hand", "purge", "transact", "copy"}


def keep_schedules(world: World) -> None:
    """Each write of the timetable once."""
    table = world.store.schedules
    plan = Plan(when=Every(1), missed="once", message=world.drafts()[0])
    table.declare({"declared": declared(plan)})
    table.put("stored", stored(plan), SOMEBODY, action="schedule")
    table.pause("stored", lambda row: row.next_run_at, SOMEBODY, paused=False)
    table.record_failure("stored", "a test")
    table.run_now("stored", lambda *_: tuple(world.drafts()), SOMEBODY, notify=False)
    table.fire(lambda row, _: Firing((), (), 0, row.now), after=600, notify=False)
    table.remove("stored", lambda _: None, SOMEBODY)


def keep_http(world: World) -> None:
    """Each write about queues, groups, secrets, tokens and workflow runs once."""
    request_queues.ensure(world.store, "orders")
    url_groups.put(world.store, "shops", [EndpointName("https://a.example/")], SOMEBODY)
    signing_keys.signing_keys(world.store, world.settings())
    made, _ = api_tokens.create(world.store, SOMEBODY, name="shop", scopes=["read"])
    assert made.id is not None
    world.store.tokens.record_use(made.id, every=60)
    world.store.http_runs.write(lambda change: change.create(NewRun(id="wfr_1", url="https://a.example/", request="")))


def keep_people(world: World) -> None:
    """Each write about users, sessions and what operators ask of a worker once."""
    world.store.users.add("ada", "hash", "admin", SOMEBODY)
    person = Person(kind="user", subject="ada", name="ada", role="admin")
    world.store.sessions.add("hash", person, "csrf", SOMEBODY, lasts=60, replaces=None)
    leases, worker = world.store.leases, world.worker()
    assert leases.request_drain(worker, SOMEBODY, drain=True)
    asked = leases.request_stacks(worker, SOMEBODY)
    assert asked is not None
    leases.answer_stacks(worker, asked, "{}")
    leases.clear_stacks(worker, asked)


def keep_projections(world: World) -> None:
    """Each write about projections once."""
    kept, worker = world.store.projections, world.worker()
    row = kept.declare("documents", "search", "docs-1")
    kept.admit("documents", worker)
    kept.acknowledge("documents", worker, row.revision)
    kept.reject("documents", "docs-1", 1)
    kept.set_readable("documents", SOMEBODY, readable=True)
    rebuilt = kept.begin_rebuild("documents", lambda generation: f"docs-{generation}", SOMEBODY)
    building = rebuilt.of("building")
    assert building is not None
    kept.advance("documents", building, RebuildProgress(phase="ready", position=None, copied=0, expected=0))
    kept.switch("documents", building.name, SOMEBODY)
    kept.stop("documents", "a test")
    kept.remove("documents", SOMEBODY)


def keep_captures(world: World) -> None:
    """Each write about captures once."""
    kept = world.store.captures
    kept.declare("main", [TableRule(table="public.orders", topic="orders", key=("id",))], snapshot=True)
    taken = kept.take("main", world.worker())
    assert taken is not None
    fence = taken.fence
    oids = {"public.orders": 2}
    kept.begin(fence, system_id="1", timeline=1, publication_oid=1, relation_oids=oids, lsn=1, generation=1)
    kept.set_state("main", "streaming", fence=fence)
    kept.stage(fence, 0, world.drafts())
    kept.store(fence, Portion(lsn=2), notify=False)
    kept.measure(fence, behind=0, retained=0)
    kept.release(fence)
    kept.restart("main", None, SOMEBODY)
    kept.drop("main", SOMEBODY)


def keep_runs(world: World) -> None:
    """Each write about runs once."""
    store, worker = world.store, world.worker()
    world.publish()
    (claim,) = world.claim(worker)
    row = StepRow(key="wait", number=1, name="wait", kind="wait", state="open", awaits="approval")
    store.runs.take_signal(claim, "approval", str, row)
    publishing = Publishing(store.database.dialect, store.database.queries, store.database.now())
    store.run(send_signal(publishing, UUID(claim.message_id), "approval", "1", lambda _, text: text))
    store.claims.release([claim])
    store.runs.heed_calls()
    run = UUID(claim.message_id)
    store.run_acts.signal(run, "approval", "1", lambda _, text: text, SOMEBODY)
    world.settle(world.claim(worker), aborted())
    store.run_acts.rewind(run, lambda rows: rows, SOMEBODY, to="wait")
    (claim,) = world.claim(worker)
    row = StepRow(key="charge", number=1, name="charge", kind="step", state="done", undo="{}")
    store.runs.store_steps([(claim, row)])
    world.settle([claim], aborted())
    store.run_acts.undo(run, SOMEBODY)


def everything(world: World) -> None:
    """Each write of the store once."""
    store, worker = world.store, world.worker()
    store.migrate()
    keep_runs(world)
    world.publish(6)
    world.publish(2, key="k", ordered=True)
    world.publish(2, key="k", per_key=Limit(concurrency=1))
    claims = world.claim(worker)
    ordered = world.claim_lanes(worker)
    world.claim_gates(worker, Limit(concurrency=1))
    store.leases.renew(worker, lease=60)
    store.leases.set_state(worker, "idle")
    store.claims.transact(claims[5], lambda _: Done(), limit=10)
    world.settle(claims[:1])
    world.settle(claims[1:3], aborted())
    store.claims.release([*claims[3:5], *ordered])
    store.acts.cancel(Filter(ids=(claims[3].id,)), SOMEBODY)
    store.acts.replay(Filter(ids=(claims[1].id,)), SOMEBODY)
    store.acts.settle_by_hand(Filter(ids=(claims[4].id,)), SOMEBODY, succeeded=True)
    store.acts.purge(Filter(ids=(claims[2].id,)), SOMEBODY)
    store.audit.record(SOMEBODY, "start replay", ["act:1"])
    store.acts.repeat([(claims[4].id, world.drafts()[0])], SOMEBODY)
    store.acts.publish(world.drafts()[0], SOMEBODY)
    store.acts.record("open", "message:1", SOMEBODY)
    world.claim(worker)
    store.leases.end(worker, lost=True)
    world.claim_suspect(world.worker())
    store.leases.reclaim()
    store.queues.pause("warehouse", SOMEBODY, paused=True)
    store.limits.set("warehouse", SOMEBODY, of="queue", concurrency=1, rate=None)
    store.limits.set_breaker("warehouse", open_for=1)
    store.destinations.set_on_abort("warehouse", skip=True)
    store.destinations.announce(["warehouse"])
    following = Following((), NewBatch(id=uuid4(), total=1, on="finished"))
    store.run(begin(Publishing(store.database.dialect, store.database.queries, store.database.now()), [following]))
    world.sql("update todoku_batch set open = 0")  # as if what follows could not be published with the last end
    assert store.follow_batches() == 1
    store.retention.expire(unknown_after=0)
    store.acts.clear_history(SOMEBODY)
    store.retention.prune(history_ttl=1)
    keep_schedules(world)
    keep_http(world)
    keep_people(world)
    keep_projections(world)
    keep_captures(world)
    store.runs.mark_undone(1, "a step")
    world.sql("insert into todoku_run_call (message_seq, awaits) values (1, 'approval')")
    store.runs.heed_calls()
    (alert,) = store.alerts.take({"dead_letters": Raised("dead_letters", 2, 1)}, ["mail"], quiet=0, remind=60)
    store.alerts.record_sent(alert, remind=60)
    store.data_keys.rewrap("2026-11", lambda _: None, SOMEBODY)
    store.data_keys.shred(SOMEBODY, since="2026-11-15", before="2026-11-16")
    store.database.write("count", lambda tx: tx.rows("count_write", name="x", value="1"))
    with store.database.bulk() as bulk, bulk.write():
        pass


def test_every_write_passes_its_two_failpoints_in_order(world: World) -> None:
    passed: list[str] = []

    def note(name: str) -> Callable[[], None]:
        return lambda: passed.append(name)

    with ExitStack() as stack:
        for name in sorted(NAMES):
            stack.enter_context(armed(name, note(name)))
        everything(world)
    assert set(passed) == NAMES
    for before, after in zip(passed[::2], passed[1::2], strict=True):
        assert before.endswith(".before_commit")
        assert after == before.replace("before", "after")


def test_what_is_lost_before_the_commit_did_not_happen_and_after_it_did(world: World) -> None:
    """Both directions of an ambiguous commit: the caller cannot tell them apart, and a retry is right for both."""
    with armed("publish.before_commit", lose), pytest.raises(DatabaseUnavailable):
        world.publish()
    assert world.deliveries() == []
    with armed("publish.after_commit", lose), pytest.raises(DatabaseUnavailable):
        world.publish()
    assert len(world.deliveries()) == 1


def test_a_failpoint_of_another_operation_does_not_act(world: World) -> None:
    with armed("settle.before_commit", lose):
        world.publish()
    assert len(world.deliveries()) == 1


PROGRAM = """
import os, sys
from todoku.store.failpoint import reach
from todoku.testing.armed import arm_from
arm_from(os.environ)
reach("claim.before_commit")
print("before", flush=True)
reach("settle.after_commit")
print("after", flush=True)
"""


def child(failpoints: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TODOKU_FAILPOINTS": failpoints},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("failpoints", ["", "settle.before_commit=kill,"])
def test_a_process_with_nothing_armed_on_its_way_goes_through(failpoints: str) -> None:
    with child(failpoints) as process:
        assert process.communicate()[0] == "before\nafter\n"
    assert process.returncode == 0


def test_kill_ends_the_process_as_kill_9_does() -> None:
    with child("claim.after_commit=lose, settle.after_commit=kill") as process:
        assert process.communicate()[0] == "before\n"
    assert process.returncode == -signal.SIGKILL


def test_stop_freezes_the_process_until_it_is_told_to_go_on() -> None:
    with child("settle.after_commit=stop") as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert os.WSTOPSIG(status) == signal.SIGSTOP
        process.send_signal(signal.SIGCONT)
        assert process.communicate()[0] == "before\nafter\n"
    assert process.returncode == 0


@pytest.mark.parametrize("failpoints", ["settle.after_commit=explode", "settle.after_commit", "settle.after_commit="])
def test_an_action_that_nobody_knows_is_refused(failpoints: str) -> None:
    with pytest.raises(InvalidSetting, match="is no failpoint action") as caught:
        arm_from({"TODOKU_FAILPOINTS": failpoints})
    assert "lose, kill, stop" in caught.value.hint
    assert failpoint._armed == {}


def test_the_actions_are_these() -> None:
    assert {action.__name__ for action in (lose, kill, stop)} == set(_ACTIONS)
