"""What a job says about itself beside its code: which failures it retries, its older names, its JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import todoku
from tests.support.world import World
from todoku.core.http_request import SCHEMES
from todoku.store.deliveries import Filter


def standing(box: todoku.App, handle: todoku.Handle[Any]) -> tuple[str, str | None, str | None]:
    found = box.store.deliveries.standing(handle.id, [handle.job])
    assert found is not None
    return found.status, found.reason, found.error


# ------------------------------------------------------------------------------------------------- retry


@pytest.mark.parametrize("run", ["loop", "thread"])
def test_only_the_named_exceptions_are_retried(box: todoku.App, run: Any) -> None:
    calls: list[str] = []

    def raised(what: str) -> None:
        calls.append(what)
        raise {"busy": ConnectionResetError, "broken": KeyError, "told": todoku.Retry(after=0)}[what]

    async def awaited(what: str) -> None:
        raised(what)

    options: dict[str, Any] = {"max_attempts": 2, "backoff": todoku.table(0), "retry_on": OSError}
    job = box.job("work", run=run, **options)(awaited if run == "loop" else raised)
    busy, broken, told = job.enqueue("busy"), job.enqueue("broken"), job.enqueue("told")
    box.drain()
    assert sorted(calls) == ["broken", "busy", "busy", "told", "told"]
    assert standing(box, busy)[:2] == ("aborted", "NETWORK")
    assert standing(box, broken)[:2] == ("aborted", "INTERNAL_ERROR")
    assert standing(box, told)[:2] == ("aborted", "RETRY")


def test_the_named_exceptions_are_never_retried(box: todoku.App) -> None:
    calls: list[str] = []

    @box.job(max_attempts=2, backoff=todoku.table(0), abort_on=(LookupError, PermissionError))
    def work(what: str) -> None:
        calls.append(what)
        raise {"gone": KeyError, "late": TimeoutError}[what]

    work.enqueue("gone")
    work.enqueue("late")
    box.drain()
    assert sorted(calls) == ["gone", "late", "late"]


def test_three_retries_are_four_attempts_and_then_it_is_a_dead_letter(box: todoku.App) -> None:
    """S3-56, S3-89: the row that the seed left pending for ever is aborted here."""
    calls: list[int] = []

    @box.job(max_retries=3, backoff=todoku.table(0))
    def work(ctx: todoku.Context) -> None:
        calls.append(ctx.attempt)
        raise TimeoutError

    @box.job(max_attempts=9, backoff=todoku.table(0))
    def other(ctx: todoku.Context) -> None:
        calls.append(-ctx.attempt)
        raise TimeoutError

    handle = work.enqueue()
    other.using(max_retries=0).enqueue()
    box.drain()
    assert sorted(calls) == [-1, 1, 2, 3, 4]
    assert standing(box, handle)[:2] == ("aborted", "TIMEOUT")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no exceptions": ({"retry_on": ()}, "retry_on cannot be"),
    "an instance": ({"abort_on": KeyError("x")}, "abort_on cannot be"),
    "what cannot be caught so": ({"retry_on": KeyboardInterrupt}, "retry_on cannot be"),
    "minus one retry": ({"max_retries": -1}, "max_retries cannot be -1"),
    "both counts": ({"max_retries": 1, "max_attempts": 2}, "cannot both be given"),
    "one alias as text": ({"aliases": "old"}, "aliases cannot be 'old'"),
    "its own name as alias": ({"aliases": ["work"]}, "two destinations are named 'work'"),
    "no schema": ({"schema": {"type": "objct"}}, "work has no valid JSON Schema"),
    "a schema that is no JSON": ({"schema": "{"}, "work has no valid JSON Schema"),
    "a schema elsewhere": ({"schema": {"$ref": "http://127.0.0.1:9/order.json"}}, "work has no valid JSON Schema"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_option_that_cannot_be_is_refused_and_nothing_is_declared(name: str, box: todoku.App) -> None:
    options, text = REFUSED[name]
    with pytest.raises(todoku.InvalidSetting, match=text):
        box.job("work", **options)(lambda: None)
    assert box.registry.names == SCHEMES
    assert len(box.jobs) == 0


def test_a_call_says_attempts_or_retries(box: todoku.App) -> None:
    @box.job
    def work() -> None: ...

    with pytest.raises(todoku.InvalidMessage, match="cannot both be given"):
        work.using(max_attempts=2, max_retries=1).enqueue()


# ------------------------------------------------------------------------------------------------- names


def test_a_renamed_job_runs_what_was_stored_under_its_old_name(box: todoku.App, url: str) -> None:
    before = todoku.App(url)
    before.job("welcome", keep_result=True)(_greeted)
    handle = before.jobs["welcome"].enqueue("Ada")
    before.close()

    job = box.job("mail.welcome", aliases=["welcome", "hello"], keep_result=True)(_greeted)
    assert box.drain() == 1
    assert handle.job == "welcome"
    assert box.store.deliveries.standing(handle.id, ["welcome"]).status == "succeeded"  # type: ignore[union-attr]
    assert job.enqueue("Bob").job == "mail.welcome"
    assert box.jobs["hello"] is job
    assert list(box.jobs) == ["mail.welcome"]


def _greeted(name: str) -> str:
    return f"Hello {name}"


# ------------------------------------------------------------------------------------------------ schemas

ORDER = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "integer"}, "amount": {"type": "number", "minimum": 0}, "mail": {"format": "email"}},
    "additionalProperties": False,
}


def test_what_breaks_the_schema_of_its_topic_is_refused_with_its_field_and_nothing_is_stored(
    box: todoku.App, world: World
) -> None:
    box.route("order.*", to=lambda _: None, name="everybody")
    box.schema("order.*", ORDER)
    for payload, text in [
        ({"amount": 1}, '"id" is a required property'),
        ({"id": "7"}, "id: .*integer"),
        ({"id": 7, "amount": -12.5}, "amount: it is less than the minimum of 0"),
        ({"id": 7, "vip": True}, "vip"),
        ({"id": 7, "mail": "nobody"}, "mail: .*email"),
    ]:
        with pytest.raises(todoku.InvalidMessage, match=text) as refused:
            box.publish("order.created", payload, tx=None)
        assert "12.5" not in str(refused.value), "a value of the payload is told"
    assert not world.store.deliveries.find(Filter()).items
    box.publish("order.created", {"id": 7, "amount": 0.5, "mail": "ada@example.org"}, tx=None)
    assert box.drain() == 1


def test_a_stored_payload_that_breaks_its_schema_is_aborted_before_anything_runs(box: todoku.App, url: str) -> None:
    ran: list[dict[str, Any]] = []
    before = todoku.App(url)
    before.job("work")(_into(ran))
    broken = before.jobs["work"].enqueue({"id": "seven"})
    before.close()

    schema = json.dumps({"type": "object", "properties": {"item": {"properties": {"id": {"type": "integer"}}}}})
    job = box.job("work", schema=schema)(_into(ran))
    fine = job.enqueue({"id": 7})
    assert box.drain() == 2
    assert ran == [{"id": 7}]
    assert standing(box, fine)[0] == "succeeded"
    status, reason, error = standing(box, broken)
    assert (status, reason) == ("aborted", "BAD_PAYLOAD")
    assert error is not None
    assert "item.id" in error


def _into(ran: list[Any]) -> Callable[[dict[str, Any]], None]:
    def work(item: dict[str, Any]) -> None:
        ran.append(item)

    return work


# --------------------------------------------------------------------------------------------- signatures


def test_a_payload_of_another_deploy_is_aborted_with_both_signatures(
    box: todoku.App, url: str, attempt: Callable[[], list[Any]]
) -> None:
    before = todoku.App(url)

    @before.job("welcome")
    def old(user: str, hobby: str | None = None) -> None: ...

    old.enqueue("secret-name", hobby=None)
    before.close()

    @box.job("welcome")
    def new(user_id: int, hobby: str | None = None) -> None: ...

    (outcome,) = attempt()
    assert outcome.reason == "BAD_PAYLOAD"
    assert "sent (user: str, hobby: null), takes (user_id: int, hobby: str | None = None)" in outcome.detail
    assert "secret-name" not in outcome.detail
