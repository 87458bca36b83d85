"""The first page: complete in itself, and nothing that somebody published runs in it."""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from todoku.api.page import CSP, PageContent, delivery_fields, page
from todoku.store.deliveries import Delivery

EVIL = "<script>alert('x')</script>\"&"


def delivery(**fields: object) -> Delivery:
    now = datetime.now(UTC)
    row: dict[str, object] = {
        "id": 7, "message_id": uuid4(), "topic": "order.created", "key": None, "destination": "warehouse",
        "queue": "warehouse", "lane": None, "priority": 0, "status": "failed", "attempts": 2, "max_attempts": 6,
        "lost": 0, "snoozes": 0, "replay_count": 0, "epoch": 3, "worker": None, "cancel_requested": False,
        "next_run_at": now, "created_at": now, "updated_at": now - timedelta(seconds=90), "reason": "HTTP_5XX",
        "error": "no answer",
    }  # fmt: skip
    return Delivery(**(row | fields))  # type: ignore[arg-type]


def shown(*deliveries: Delivery, **fields: object) -> str:
    given: dict[str, object] = {
        "title": "sqlite:///todoku.db", "state": "running", "notes": (), "counts": {"pending": 3, "aborted": 12345},
        "deliveries": deliveries, "problem": "",
    }  # fmt: skip
    return page(PageContent(**(given | fields)))  # type: ignore[arg-type]


def test_it_shows_counts_and_deliveries_with_status_and_reason() -> None:
    text = shown(delivery())
    for word in (
        "order.created",
        "warehouse",
        "failed",
        "2/6",
        "HTTP_5XX",
        "no answer",
        "1 min ago",
        "12,345",
        "ready",
    ):
        assert word in text


def test_dead_letters_stay_in_sight_with_what_to_do() -> None:
    """Newer deliveries push them out of the table, not off the page."""
    text = shown(delivery(id=9), dead=(delivery(id=8, status="aborted", topic="the.dead", error=EVIL),))
    assert text.index("the.dead") < text.index("Newest deliveries")
    assert "todoku show 8" in text
    assert "todoku replay 8" in text
    assert EVIL not in text
    assert "Dead letters" not in shown(delivery())


def test_it_shows_the_correlation_id_by_which_one_event_is_followed() -> None:
    """S4-18."""
    one = delivery()
    assert one.message_id is not None
    assert "request-7" in shown(one, correlations={one.message_id: "request-7"})
    assert EVIL not in shown(one, correlations={one.message_id: EVIL})


def test_whatever_people_publish_is_escaped() -> None:
    text = shown(
        delivery(topic=EVIL, destination=EVIL, reason=EVIL, error=EVIL, status=EVIL),
        title=EVIL, state=EVIL, notes=(EVIL,),
    )  # fmt: skip
    assert EVIL not in text
    assert "alert('x')" not in text
    assert text.count("<script>") == 1
    assert EVIL not in shown(problem=EVIL)


def test_it_needs_nothing_from_elsewhere() -> None:
    assert re.findall(r"(?:src|href|url)\s*[=(]", shown(delivery())) == []


def test_only_its_own_script_and_style_may_run() -> None:
    """The policy names the hash of the very text in the page."""
    text = shown()
    for tag in ("script", "style"):
        inside = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert inside is not None
        digest = base64.b64encode(hashlib.sha256(inside[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in CSP
    assert "unsafe" not in CSP


def test_an_empty_database_says_what_to_do() -> None:
    assert "box.publish(" in shown()


def test_a_daemon_that_is_not_ready_says_why() -> None:
    text = shown(state="draining", notes=("draining",))
    assert "draining: draining" in text
    assert 'class="badge not"' in text


def test_the_row_for_programs_has_no_payload_and_no_worker() -> None:
    assert list(delivery_fields(delivery())) == [
        "id", "message_id", "topic", "destination", "status", "attempts", "max_attempts", "reason", "error",
        "created_at", "updated_at", "next_run_at", "correlation_id",
    ]  # fmt: skip
