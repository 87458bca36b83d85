"""Looking for the next slot is as cheap with many schedules as with one: every worker does it every second."""

from __future__ import annotations

import pytest

from tests.plans.explaining import MODES, ExplainingPostgres, ExplainingSqlite, nodes
from tests.support.world import SOMEBODY
from todoku.app import new_id
from todoku.core.message import Draft, Leg
from todoku.core.schedule import Every, Plan
from todoku.engine.schedule import declared, firing
from todoku.store.schedules import ScheduleStore

QUERIES = ("next_schedule", "due_schedule")
MANY = 2000


def drive(table: ScheduleStore) -> None:
    """Many schedules, none of them due; then a look, and a firing that finds nothing, and one that does."""
    message = Draft(id=new_id(), topic="t", type="t", payload="{}", legs=(Leg(destination="d"),))
    plan = Plan(when=Every(86_400 * 365), missed="once", message=message)
    table.declare({f"s{number}": declared(plan) for number in range(MANY)})
    look = table.read_next_slot(after=600)
    assert look.any
    assert look.next is not None
    assert look.next > look.now
    assert table.fire(lambda row, _: firing(row, lambda draft: draft, once_for=60), after=600, notify=False) is None
    table.remove("s1", lambda _: None, SOMEBODY)


@pytest.mark.postgres
@pytest.mark.slow
def test_the_next_slot_is_found_by_the_index_on_postgresql(postgres_url: str) -> None:
    database = ExplainingPostgres(postgres_url)
    drive(ScheduleStore(database))
    for query in QUERIES:
        for mode in MODES:
            (plan, *_) = database.plans[query, mode]
            used = {node["Index Name"] for node, _ in nodes(plan) if "Index Name" in node}
            assert "todoku_schedule_due" in used, (query, mode, plan)
            assert not [node for node, _ in nodes(plan) if node["Node Type"] == "Sort"], (query, mode)
    database.close()


def test_the_next_slot_is_found_by_the_index_on_sqlite(sqlite_url: str) -> None:
    database = ExplainingSqlite(sqlite_url)
    database.migrate()
    drive(ScheduleStore(database))
    for query in QUERIES:
        (plan, *_) = [plan for name, _, plan in database.plans if name == query]
        assert any("todoku_schedule_due" in step for step in plan), (query, plan)
    database.close()
