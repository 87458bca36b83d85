"""The show of examples/payments, small: repetitions, the worst order, kills (`make example-payments-show`: large)."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from payments_example.show.acts import Stage, embedded, queue
from payments_example.show.story import told
from payments_example.show.verdict import judged

from tests.examples.payments_at_work import payments_at
from tests.support.ports import free_port

PAYMENTS = 20


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["embedded", "queue"])
def test_nothing_is_lost_every_dead_letter_is_found_run_again_and_audited(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """S4-5, S4-7, S4-9, S4-34: whoever works is killed in the middle, and Stripe repeats itself."""
    example = str(Path(__file__).resolve().parents[2] / "examples" / "payments")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([example, *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setattr("payments_example.show.acts.free_port", free_port)
    with Stage(tmp_path, sqlite_url, mode) as stage:
        result = (embedded if mode == "embedded" else queue)(stage, told(PAYMENTS, random.Random(4)))
    assert result.problems == ()
    lines = dict(result.lines)
    assert (lines["payments"], lines["lost"]) == (PAYMENTS, 0)
    assert lines["run again by hand"] == sum(
        number for name, number in lines.items() if name.startswith("dead letters")
    )
    assert lines["alerts told"]


def test_the_verdict_finds_what_was_lost_undone_or_not_told(sqlite_url: str, tmp_path: Path) -> None:
    """A judge that never finds anything judges nothing."""
    story = told(3, random.Random(4))
    with payments_at(sqlite_url, tmp_path) as at_work:
        for intent, status in (("pi_0", "succeeded"), ("pi_1", "succeeded")):
            at_work.sql("insert into payments values (?, 'p', ?, 1, 'jpy', 1, 1)", intent, status)
        for id in ("evt_0_paid", "evt_1_paid", "evt_nobody"):
            at_work.sql("insert into payment_events (stripe_event_id, type, intent, applied) values (?, '', '', 1)", id)
        problems = judged(at_work.payments.engine, story, mails=2).problems
    assert set(problems) == {
        "evt_0_failed was lost",
        "evt_0_refunded was lost",
        "evt_2_paid was lost",
        "evt_nobody came from nowhere",
        "pi_0 is succeeded, and should be refunded",
        "pi_2 is nowhere, and should be succeeded",
        "2 mails were written about 3 changes",
    }


def test_the_story_has_every_event_of_the_seed_repetitions_and_refunds_that_come_first() -> None:
    """S4-2."""
    story = told(200, random.Random(4))
    assert len(story.posts) > len(story.ids)
    assert {event["type"] for event in story.posts} == {
        "payment_intent.succeeded",
        "payment_intent.payment_failed",
        "charge.refunded",
    }
    first = {id: place for place, id in reversed([*enumerate(event["id"] for event in story.posts)])}
    early = [id for id in first if id.endswith("_refunded") and first[id] < first[id.replace("refunded", "paid")]]
    assert len(early) > 10
