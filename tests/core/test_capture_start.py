"""The comparison before every start of a capture: nothing is skipped silently, and what is fine is let through."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from todoku.core.capture import Stop
from todoku.core.capture_start import (
    ServerFacts,
    SlotFacts,
    StoredStart,
    TimelineEnd,
    judge_start,
    parse_timelines,
)
from todoku.core.errors import CaptureError

OIDS = {"public.orders": 501, "public.items": 502}
FRESH = StoredStart(name="main", slot="todoku_main", publication="todoku_main")
STORED = msgspec.structs.replace(
    FRESH, lsn=0x200, system_id="7700", timeline=2, publication_oid=400, relation_oids=OIDS
)
SERVER = ServerFacts(system_id="7700", timeline=2, lsn=0x300, publication_oid=400, relation_oids=OIDS)
SLOT = SlotFacts(confirmed=0x200)
ANEW = "`todoku capture snapshot main --by … --why …`"


def server(**changed: Any) -> ServerFacts:
    return msgspec.structs.replace(SERVER, **changed)


def slot(**changed: Any) -> SlotFacts:
    return msgspec.structs.replace(SLOT, **changed)


def ends(*pairs: tuple[int, int]) -> tuple[TimelineEnd, ...]:
    return tuple(TimelineEnd(timeline, lsn) for timeline, lsn in pairs)


@pytest.mark.parametrize(
    ("stored", "facts", "found", "timelines"),
    [
        pytest.param(FRESH, SERVER, None, (), id="the first start"),
        pytest.param(FRESH, server(publication_oid=None, relation_oids={}), None, (), id="nothing was made yet"),
        pytest.param(FRESH, SERVER, SLOT, (), id="an interrupted start left its slot"),
        pytest.param(FRESH, SERVER, slot(wal_status="lost"), (), id="an operator began anew after a lost slot"),
        pytest.param(STORED, SERVER, SLOT, (), id="the same server"),
        pytest.param(STORED, server(lsn=0x200), SLOT, (), id="nothing happened since"),
        pytest.param(STORED, SERVER, slot(confirmed=0x100), (), id="stored, and not confirmed before a crash"),
        pytest.param(STORED, SERVER, slot(wal_status="unreserved"), (), id="the slot is behind, and has its log"),
        pytest.param(STORED, SERVER, slot(wal_status="extended"), (), id="the slot holds more log than usual"),
        pytest.param(STORED, server(timeline=3), SLOT, ends((1, 0x50), (2, 0x250)), id="promoted later"),
        pytest.param(STORED, server(timeline=3), SLOT, ends((1, 0x50), (2, 0x200)), id="promoted exactly there"),
        pytest.param(STORED, server(timeline=4), SLOT, ends((2, 0x250), (3, 0x260)), id="promoted twice"),
        pytest.param(STORED, server(relation_oids=OIDS | {"public.new": 9}), SLOT, (), id="a table more"),
    ],
)
def test_a_start_that_loses_nothing(
    stored: StoredStart, facts: ServerFacts, found: SlotFacts | None, timelines: tuple[TimelineEnd, ...]
) -> None:
    assert judge_start(stored, facts, found, timelines) is None


@pytest.mark.parametrize(
    ("reason", "part", "facts", "found", "timelines"),
    [
        ("OTHER_SERVER", "its system identifier is 8800, it was 7700", server(system_id="8800"), SLOT, ()),
        ("DIVERGED", "it is at 0/1FF; captured is everything up to 0/200", server(lsn=0x1FF), SLOT, ()),
        ("DIVERGED", "left timeline 2 at 0/1FF", server(timeline=3), SLOT, ends((1, 0x50), (2, 0x1FF))),
        ("DIVERGED", "does not come from timeline 2", server(timeline=3), SLOT, ends((1, 0x250))),
        ("DIVERGED", "does not come from timeline 2", server(timeline=1), SLOT, ()),
        ("SLOT_MISSING", "The slot todoku_main was dropped", SERVER, None, ()),
        ("SLOT_LOST", "(its part of the log was removed)", SERVER, slot(wal_status="lost"), ()),
        ("SLOT_LOST", "(wal_removed)", SERVER, slot(wal_status="lost", invalidation_reason="wal_removed"), ()),
        ("SLOT_LOST", "(idle_timeout)", SERVER, slot(invalidation_reason="idle_timeout"), ()),
        ("SLOT_AHEAD", "was moved to 0/201, beyond 0/200", SERVER, slot(confirmed=0x201), ()),
        ("PUBLICATION_CHANGED", "todoku_main was dropped on", server(publication_oid=None, relation_oids={}), SLOT, ()),
        ("PUBLICATION_CHANGED", "was dropped and made anew", server(publication_oid=401), SLOT, ()),
        ("PUBLICATION_CHANGED", "public.items left", server(relation_oids={"public.orders": 501}), SLOT, ()),
        ("PUBLICATION_CHANGED", "public.items left", server(relation_oids=OIDS | {"public.items": 503}), SLOT, ()),
        ("PUBLICATION_CHANGED", "public.items, public.orders left", server(relation_oids={}), SLOT, ()),
    ],
)
def test_a_start_that_would_lose_changes_is_refused(
    reason: str, part: str, facts: ServerFacts, found: SlotFacts | None, timelines: tuple[TimelineEnd, ...]
) -> None:
    stop = judge_start(STORED, facts, found, timelines)
    assert stop is not None
    assert (stop.reason, stop.state) == (reason, "stopped")
    assert part in stop.why
    assert ANEW in stop.why


@pytest.mark.parametrize("stored", [FRESH, STORED])
def test_a_second_reader_waits(stored: StoredStart) -> None:
    stop = judge_start(stored, SERVER, slot(active_pid=4711))
    assert stop is not None
    assert (stop.reason, stop.state) == ("SLOT_BUSY", "away")
    assert "select pg_terminate_backend(4711)" in stop.why


def test_what_is_lost_is_said_although_another_reader_has_the_slot() -> None:
    stop = judge_start(STORED, SERVER, slot(active_pid=4711, confirmed=0x201))
    assert stop is not None
    assert stop.reason == "SLOT_AHEAD"


def test_only_a_source_that_comes_back_by_itself_is_away() -> None:
    assert Stop("SOURCE_AWAY", "").state == "away"
    assert Stop("SLOT_DROPPED", "").state == "stopped"


small = some.integers(0, 6)


@given(stored=small, confirmed=small, at=small, promoted=small, timeline=some.integers(1, 3))
def test_streaming_starts_only_where_nothing_can_be_missing(
    stored: int, confirmed: int, at: int, promoted: int, timeline: int
) -> None:
    """Every start that is let through: confirmed ≤ stored ≤ the end of its timeline ≤ the server's position."""
    began = msgspec.structs.replace(STORED, lsn=stored)
    facts = server(lsn=at, timeline=timeline)
    stop = judge_start(began, facts, slot(confirmed=confirmed), ends((1, 0), (2, promoted)) if timeline == 3 else ())
    fine = confirmed <= stored <= at and timeline >= 2 and (timeline == 2 or stored <= promoted)
    assert (stop is None) == (fine or stored == 0)


def test_a_history_of_timelines_is_read() -> None:
    text = (
        "1\t0/5000148\tno recovery target specified\n\n# a comment\n"
        '2\t1/A0\tbefore 2026-01-01 00:00:00+00\n  3\t1/B0\tat restore point "x"\n'
    )
    assert parse_timelines(text) == ends((1, 0x5000148), (2, 0x1_0000_00A0), (3, 0x1_0000_00B0))
    assert parse_timelines("") == ()


@pytest.mark.parametrize("line", ["x", "1", "1\tnowhere", "0/50\t1", "1\t0/50x", "-1\t0/50"])
def test_another_file_is_no_history(line: str) -> None:
    with pytest.raises(CaptureError, match="no line of a timeline's history"):
        parse_timelines(f"1\t0/50\tfine\n{line}\n")
