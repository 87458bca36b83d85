"""examples/payments, embedded: seed 004 (S4-1…S4-60) in the application's own database."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from payments_example.application import RETRIES
from payments_example.events import RANK, STATUSES
from payments_example.settings import read_settings
from payments_example.show.stripe_side import intent_event, refund_event

import todoku
from tests.daemon.running import until
from tests.examples.payments_at_work import ADMIN, NOW, SECRET, AtWork, payments_at
from todoku.core.backoff import delay


@pytest.fixture
def at_work(url: str, tmp_path: Path) -> Iterator[AtWork]:
    with payments_at(url, tmp_path) as at_work:
        at_work.sql("insert into participants (id, email) values ('p1', 'p1@example.com')")
        yield at_work


def succeeded(id: str = "evt_1", *, at: int = NOW, participant: str | None = "p1") -> dict[str, Any]:
    return intent_event(id, "payment_intent.succeeded", "pi_1", at=at, participant=participant)


def failed(id: str, *, at: int = NOW) -> dict[str, Any]:
    return intent_event(id, "payment_intent.payment_failed", "pi_1", at=at, participant="p1")


def refunded(id: str, *, at: int) -> dict[str, Any]:
    return refund_event(id, "pi_1", at=at, participant="p1")


def settled(at_work: AtWork) -> None:
    """Everything that is due now, hooks too, has run."""
    while at_work.box.drain():
        pass


def waited_for_retries(at_work: AtWork) -> None:
    """Short back-offs are over, too."""
    until(
        lambda: (
            settled(at_work)
            or all(at_work.box.store.statistics.counts().of(name) == 0 for name in ("pending", "failed"))
        ),
        "nothing to be due any more",
    )


# --------------------------------------------------------------------------------------------- the webhook


def test_the_webhook_verifies_commits_and_answers_204_without_a_body(at_work: AtWork) -> None:
    """S4-1, S4-13, S4-46, S4-49, S4-50: the heavy work is not in it (S4-3)."""
    answer = at_work.post(succeeded(), **{"X-Request-Id": "request-7"})
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["x-request-id"] == "request-7"
    assert answer.headers["x-event-id"] == "evt_1"
    assert answer.headers["upstash-message-id"]
    assert at_work.payment("pi_1") is None
    settled(at_work)
    assert at_work.payment("pi_1") == {
        "intent": "pi_1", "participant_id": "p1", "status": "succeeded", "amount": 4200, "currency": "jpy",
        "event_at": NOW,
    }  # fmt: skip


def test_what_stripe_did_not_sign_is_a_problem_and_leaves_nothing(at_work: AtWork) -> None:
    """S4-51, S4-60."""
    answer = at_work.post(succeeded(), secret="whsec_somebody_elses")
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    settled(at_work)
    assert at_work.payment("pi_1") is None
    assert at_work.sql("select count(*) from todoku_message") == [(0,)]


def test_a_secret_that_is_being_rolled_still_counts(url: str, tmp_path: Path) -> None:
    with payments_at(url, tmp_path, stripe_secrets=("whsec_new", SECRET)) as at_work:
        assert at_work.post(succeeded()).status_code == 204
        assert at_work.post(succeeded("evt_2"), secret="whsec_new").status_code == 204


def test_stripe_may_post_an_event_as_often_as_it_likes(at_work: AtWork) -> None:
    """S4-7, S4-17, S4-22, S4-27."""
    answers = [at_work.post(succeeded()) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {204}
    assert len({answer.headers["upstash-message-id"] for answer in answers}) == 1
    settled(at_work)
    assert at_work.post(succeeded()).status_code == 204
    settled(at_work)
    assert at_work.sql("select stripe_event_id from payment_events") == [("evt_1",)]
    assert at_work.mails() == ["Thank you, we have your payment"]


# ------------------------------------------------------------------------------------------------ payments


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_whatever_order_events_arrive_in_their_own_time_decides(
    sqlite_url: str, tmp_path: Path, order: tuple[int]
) -> None:
    """S4-2: a late success never undoes a refund."""
    events = [failed("evt_f", at=NOW), succeeded("evt_s", at=NOW + 10), refunded("evt_r", at=NOW + 20)]
    with payments_at(sqlite_url, tmp_path) as at_work:
        for place in order:
            assert at_work.post(events[place]).status_code == 204
            settled(at_work)
        found = at_work.payment("pi_1")
        assert found is not None
        assert (found["status"], found["event_at"]) == ("refunded", NOW + 20)
        assert at_work.sql("select count(*) from payment_events") == [(3,)]


def test_of_one_second_a_refund_is_later_than_a_success_and_that_than_a_failure(at_work: AtWork) -> None:
    """Stripe's times are whole seconds."""
    for event in (refunded("evt_r", at=NOW), succeeded("evt_s"), failed("evt_f")):
        at_work.post(event)
        settled(at_work)
    assert (at_work.payment("pi_1") or {})["status"] == "refunded"
    assert sorted(RANK, key=RANK.__getitem__) == ["failed", "succeeded", "refunded"] == [*STATUSES.values()]


def test_what_came_too_late_is_noted_and_nobody_is_written_to(at_work: AtWork) -> None:
    for event in (refunded("evt_r", at=NOW + 20), succeeded("evt_s", at=NOW)):
        at_work.post(event)
        settled(at_work)
    rows = dict(at_work.sql("select stripe_event_id, applied from payment_events"))
    assert {id: bool(applied) for id, applied in rows.items()} == {"evt_r": True, "evt_s": False}
    assert at_work.mails() == ["Your payment was refunded"]


def test_events_that_are_not_ours_are_acknowledged_and_change_nothing(at_work: AtWork) -> None:
    other = intent_event("evt_c", "customer.created", "cus_1", at=NOW, participant=None)
    assert at_work.post(other).status_code == 204
    settled(at_work)
    assert at_work.sql("select count(*) from payment_events") == [(0,)]
    assert at_work.box.store.statistics.counts().of("aborted") == 0


# --------------------------------------------------------------------------------- failures, dead letters


def test_a_database_that_is_away_is_tried_four_times_and_then_it_is_a_dead_letter(at_work: AtWork) -> None:
    """S4-4, S4-11, S4-16, S4-19: retries 3, each wait twice the one before; S4-26."""
    at_work.sql("alter table payments rename to payments_away")
    at_work.post(succeeded())
    waited_for_retries(at_work)
    ((attempts, status),) = at_work.sql("select attempts, status from todoku_delivery where destination = 'record'")
    assert (attempts, status) == (RETRIES + 1, "aborted")
    at_work.sql("alter table payments_away rename to payments")
    ((id,),) = at_work.sql("select id from todoku_delivery where destination = 'record'")
    at_work.box.replay(id, by="ana", why="it is back")
    settled(at_work)
    assert (at_work.payment("pi_1") or {})["status"] == "succeeded"


def test_retries_wait_one_two_four_seconds() -> None:
    """S4-19."""
    backoff = todoku.exponential(base=read_settings({}).first_wait)
    assert [delay(backoff, attempt, jitter=0.0) for attempt in (1, 2, 3)] == [1, 2, 4]


def test_what_cannot_succeed_is_a_dead_letter_at_once_in_the_table_and_on_the_page(at_work: AtWork) -> None:
    """S4-5, S4-12, S4-23, S4-25, S4-31, S4-32, S4-33: found, mended, run again by hand, audited."""
    at_work.post(succeeded(participant=None))
    settled(at_work)
    (failure,) = at_work.client.get("/admin/failed", auth=ADMIN).json()
    assert failure["event_id"] == "evt_1"
    assert failure["error"].startswith("MISSING_PARTICIPANT")
    assert "MISSING_PARTICIPANT" in at_work.client.get("/admin/dead-letters", auth=ADMIN).text
    ((number,),) = at_work.sql("select id from todoku_delivery where status = 'aborted'")
    page = at_work.client.get(f"/admin/deliveries/{number}", auth=ADMIN).text
    assert "evt_1" in page, "its payload"
    at_work.sql("insert into participants (id, email, intent) values ('p7', 'p7@example.com', 'pi_1')")
    again = at_work.act(f"/admin/deliveries/{number}/replay", page, why="we know now whose it is")
    assert (again.status_code, again.headers["location"]) == (303, f"/admin/deliveries/{number}"), again.text
    settled(at_work)
    assert (at_work.payment("pi_1") or {})["participant_id"] == "p7"
    assert at_work.mails() == ["Thank you, we have your payment"]
    acts = at_work.sql("select by, action, why from todoku_audit where by <> 'todoku'")
    assert acts == [("ana", "replay", "we know now whose it is")]
    ((by, why),) = at_work.sql("select rerun_by, rerun_why from failed_webhook_events")
    assert (by, why) == ("ana", "we know now whose it is")


def test_a_dead_letter_is_deleted_through_the_console(at_work: AtWork) -> None:
    """S4-12."""
    at_work.post(succeeded(participant=None))
    settled(at_work)
    ((number,),) = at_work.sql("select id from todoku_delivery where status = 'aborted'")
    page = at_work.client.get(f"/admin/deliveries/{number}", auth=ADMIN).text
    gone = at_work.act(f"/admin/deliveries/{number}/delete", page, why="it was a test")
    assert gone.status_code == 303, gone.text
    assert at_work.sql("select count(*) from todoku_delivery where status = 'aborted'") == [(0,)]
    assert set(at_work.sql("select by, why from todoku_audit where action = 'purge'")) == {("ana", "it was a test")}


def test_an_event_is_run_again_from_the_table_by_a_program(at_work: AtWork) -> None:
    """S4-33: what the console does for a person; a form of another site cannot send JSON."""
    at_work.post(succeeded(participant=None))
    settled(at_work)
    at_work.sql("insert into participants (id, email, intent) values ('p7', 'p7@example.com', 'pi_1')")
    path, body = "/admin/failed/evt_1/rerun", {"why": "we know now whose it is"}
    assert at_work.client.post(path, auth=ADMIN, data=body).status_code == 422
    assert at_work.client.post(path, auth=ADMIN, json=body).status_code == 204
    settled(at_work)
    assert (at_work.payment("pi_1") or {})["participant_id"] == "p7"
    assert at_work.client.post(path, auth=ADMIN, json=body).status_code == 409


def test_a_row_is_closed_when_stripe_itself_repeats_the_event_and_it_succeeds(at_work: AtWork) -> None:
    """S4-32."""
    at_work.post(succeeded(participant=None))
    settled(at_work)
    at_work.sql("insert into participants (id, email, intent) values ('p7', 'p7@example.com', 'pi_1')")
    at_work.post(succeeded(participant=None))
    settled(at_work)
    assert (at_work.payment("pi_1") or {})["participant_id"] == "p7"
    ((rerun_at, by),) = at_work.sql("select rerun_at, rerun_by from failed_webhook_events")
    assert (rerun_at is not None, by) == (True, "publisher")


def test_an_event_that_fails_again_is_one_row(at_work: AtWork) -> None:
    """S4-31: event_id is unique."""
    for _ in range(3):  # a duplicate of a dead event opens it again
        at_work.post(succeeded(participant=None))
        settled(at_work)
    assert at_work.sql("select event_id from failed_webhook_events") == [("evt_1",)]


def is_problem(answer: httpx.Response, status: int) -> bool:
    """A problem detail, with the id by which the logs know of the request."""
    body = answer.json()
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    assert (answer.status_code, body["status"], bool(body["title"])) == (status, status, True), answer.text
    assert answer.headers["x-request-id"] == body["request_id"]
    return True


def test_every_error_is_a_problem_with_a_request_id(at_work: AtWork) -> None:
    """S4-51: also what the framework refuses; the caller's id is kept."""
    client = at_work.client
    assert is_problem(client.get("/admin/"), 401)
    assert is_problem(client.get("/admin/failed"), 401)
    refused = client.get("/admin/", auth=("ana", "guess"), headers={"X-Request-Id": "request-7"})
    assert is_problem(refused, 401)
    assert (refused.json()["request_id"], refused.headers["www-authenticate"]) == ("request-7", "Basic")
    assert is_problem(client.post("/admin/failed/evt_1/rerun", auth=ADMIN, json={"why": "x"}), 409)
    assert is_problem(client.get("/nowhere"), 404)
    assert is_problem(client.get("/payments/none"), 404)
    assert is_problem(client.delete("/payments/none"), 405)
    assert is_problem(client.get("/ingest/stripe"), 405)
    assert is_problem(at_work.post({**succeeded(), "id": None}), 422)
    assert is_problem(at_work.post(succeeded(), secret="whsec_somebody_elses"), 400)
    assert is_problem(client.get("/metrics"), 401)
    at_work.sql("alter table payments rename to payments_away")
    assert is_problem(client.get("/payments/pi_1"), 503)


def test_what_nobody_foresaw_is_a_problem_too(at_work: AtWork, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4-51: and says nothing of what went wrong inside."""
    monkeypatch.setattr("payments_example.api.payment", lambda *_: 1 / 0)
    answer = at_work.client.get("/payments/pi_1")
    assert is_problem(answer, 500)
    assert "division" not in answer.text


def test_the_page_is_only_for_whoever_has_the_token_and_came_from_it(at_work: AtWork) -> None:
    client, origin = at_work.client, {"Origin": str(at_work.client.base_url).rstrip("/")}
    for path in ("/admin/", "/admin/dead-letters"):
        assert client.get(path).status_code == 401
        assert client.get(path, auth=("ana", "guess")).status_code == 401
        assert client.get(path, auth=ADMIN).status_code == 200
    forged = {"why": "x", "csrf": "y"}
    assert client.post("/admin/deliveries/1/replay", auth=ADMIN, data=forged, headers=origin).status_code == 403
    page = client.get("/admin/new", auth=ADMIN).text
    foreign = at_work.act("/admin/deliveries/1/replay", page, why="x", origin="https://evil.example")
    assert foreign.status_code == 403


def test_what_an_event_says_is_text_on_the_page(at_work: AtWork) -> None:
    event = succeeded("evt_<script>", participant=None)
    at_work.post(event)
    settled(at_work)
    ((number,),) = at_work.sql("select id from todoku_delivery where status = 'aborted'")
    for path in ("/admin/dead-letters", f"/admin/deliveries/{number}"):
        assert "<script>" not in at_work.client.get(path, auth=ADMIN).text


# ---------------------------------------------------------------------------------------------- reminders


def test_whoever_could_not_pay_is_reminded_once_a_day(at_work: AtWork) -> None:
    """S4-59, S4-58."""
    at_work.post(failed("evt_f"))
    settled(at_work)
    for why in ("to see it", "and again"):
        at_work.box.schedules.run_now("remind", by="ana", why=why)
        settled(at_work)
    assert at_work.mails() == ["Your payment did not go through", "Your payment is still open"]
    (schedule,) = at_work.box.schedules.list()
    assert (schedule.name, schedule.when, schedule.tz) == ("remind", "0 9 * * *", "Asia/Tokyo")


def test_the_reminder_reaches_whoever_stripe_has_an_address_of(sqlite_url: str, tmp_path: Path) -> None:
    """S4-59: no operator has filled in a table of participants."""
    with payments_at(sqlite_url, tmp_path) as at_work:
        at_work.post(
            intent_event(
                "evt_f", "payment_intent.payment_failed", "pi_1", at=NOW, participant="p1", email="p1@x.example"
            )
        )
        settled(at_work)
        at_work.box.schedules.run_now("remind", by="ana", why="to see it")
        settled(at_work)
        assert at_work.mails() == ["Your payment did not go through", "Your payment is still open"]
        at_work.post(intent_event("evt_s", "payment_intent.succeeded", "pi_1", at=NOW + 9, participant="p1"))
        settled(at_work)
        at_work.box.schedules.run_now("remind", by="ana", why="who has paid is left alone")
        settled(at_work)
        assert at_work.mails().count("Your payment is still open") == 1


def test_settings_that_cannot_be_are_named() -> None:
    for environ, name in (({"PORT": "x"}, "PORT"), ({"MODE": "both"}, "MODE"), ({"MODE": "queue"}, "QSTASH_URL")):
        with pytest.raises(todoku.InvalidSetting, match=name):
            read_settings(environ)
