"""Declaring: what cannot work is refused where it is written, with the way out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import todoku
from todoku.core.http_request import SCHEMES

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[todoku.App]:
    box = todoku.App(f"sqlite:///{tmp_path}/shop.db")
    yield box
    box.close()


def plain() -> None: ...


async def awaited() -> None: ...


class Custom: ...


JOBS: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "a sync function in the loop": (plain, {"run": "loop"}, r'would block .*run="thread"'),
    "an async one in a thread": (awaited, {"run": "thread"}, "is async"),
    "an async one in a process": (awaited, {"run": "process"}, "is async"),
    "an async one with a transaction": (awaited, {"transactional": True}, "write def instead of async def"),
    "a transaction in another process": (plain, {"transactional": True, "run": "process"}, "transaction belongs"),
    "a lambda in a process": (lambda: None, {"run": "process"}, "cannot be found by another process"),
    "a way to run that there is not": (plain, {"run": "fibre"}, "auto, loop, thread or process"),
    "an option that there is not": (plain, {"retries": 3}, "no option retries .known: abort_on, aliases, backoff"),
    "no attempts": (plain, {"max_attempts": 0}, "max_attempts cannot be 0"),
    "half an attempt": (plain, {"max_attempts": 1.5}, "max_attempts cannot be 1.5"),
    "no time": (plain, {"timeout": 0}, "timeout cannot be 0"),
    "a negative window": (plain, {"unique_for": -1}, "unique_for cannot be -1"),
    "no queue": (plain, {"queue": ""}, "queue cannot be ''"),
    "a back-off of numbers": (plain, {"backoff": (1, 2)}, "use todoku.table"),
    "a class": (Custom, {}, "is no function"),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_job_that_cannot_run_is_refused(name: str, box: todoku.App) -> None:
    function, options, text = JOBS[name]
    with pytest.raises(todoku.InvalidSetting, match=text):
        box.job("work", **options)(function)
    assert box.registry.names == SCHEMES
    assert len(box.jobs) == 0


def test_a_name_is_a_topic_and_can_be_taken_once(box: todoku.App) -> None:
    box.job(plain)
    with pytest.raises(todoku.InvalidSetting, match="two destinations are named 'plain'"):
        box.job(plain)
    with pytest.raises(todoku.InvalidMessage, match="is not a topic"):
        box.job("a b")(plain)
    with pytest.raises(todoku.InvalidMessage, match="is not a topic"):
        box.job(lambda: None)
    with pytest.raises(todoku.InvalidSetting, match="give it a name"):
        box.job(functools.partial(plain))
    assert box.job("partial")(functools.partial(plain)).name == "partial"
    box.route("order.*", to="elsewhere")
    with pytest.raises(todoku.InvalidSetting, match="two destinations are named 'plain'"):
        box.on("order.*", name="plain")(plain)


def test_generators_run_nothing_and_are_refused(box: todoku.App) -> None:
    def yields() -> Iterator[int]:
        yield 1

    async def async_yields() -> Any:
        yield 1

    for function in (yields, async_yields):
        with pytest.raises(todoku.InvalidSetting, match="return instead of yield"):
            box.job(function)


def test_what_cannot_be_read_from_json_is_no_parameter(box: todoku.App) -> None:
    def custom(value: list[Custom]) -> None: ...

    def missing(value: Missing) -> None: ...

    def context(ctx) -> None: ...  # type: ignore[no-untyped-def]

    def stream(value: Iterator[int] | Custom) -> None: ...

    for function, text in (
        (custom, "custom, value: Custom cannot be read from JSON"),
        (missing, "annotations of missing .*TYPE_CHECKING"),
        (context, r"ctx has no annotation .*todoku\.Context"),
        (stream, "stream, value: "),
    ):
        with pytest.raises(todoku.InvalidSetting, match=text):
            box.job(function)


def test_how_a_handler_runs_follows_from_what_it_is(box: todoku.App) -> None:
    class Async:
        async def __call__(self, n: int) -> None: ...

    class Sync:
        def __call__(self, ctx: todoku.Context) -> None: ...

    runs = {
        name: box.job(name, **options)(function).target.run
        for name, function, options in (
            ("sync", plain, {}),
            ("async", awaited, {}),
            ("async-object", Async(), {}),
            ("sync-object", Sync(), {}),
            ("apart", plain, {"run": "process"}),
            ("transactional", plain, {"transactional": True}),
        )
    }
    assert runs == {
        "sync": "thread",
        "async": "loop",
        "async-object": "loop",
        "sync-object": "thread",
        "apart": "process",
        "transactional": "thread",
    }
    assert box.registry["apart"].reference == f"{__name__}:plain"


@dataclass
class Order:
    id: int


class Other(msgspec.Struct):
    id: int


def test_an_event_is_a_class_with_fields_and_its_topic_is_its_own(box: todoku.App) -> None:
    assert box.event("order.created", key="id")(Order) is Order
    for declare, text in (
        (lambda: box.event("order.paid", key="nr")(Order), "Order has no field 'nr' .one of: id"),
        (lambda: box.event("order.created")(Other), "Order and Other both have the topic"),
        (lambda: box.event("order.paid")(Custom), "Custom cannot be an event .*@dataclass"),
        (lambda: box.event("order.paid")(plain), "put @box.event on a class"),  # type: ignore[type-var]
        (lambda: box.event("order.*")(Other), "is not a topic"),
        (lambda: box.on(Other), "Other is not an event of this App"),
        (lambda: box.on("order.created", unique_for=5)(plain), "unique_for is for jobs"),
    ):
        with pytest.raises(todoku.TodokuError, match=text):
            declare()


def test_a_consumer_takes_one_event(box: todoku.App) -> None:
    def two(ctx: todoku.Context, event: Any, more: int) -> None: ...

    def named(*, event: Any) -> None: ...

    def lenient(event: Any, more: int = 1) -> None: ...

    for function in (two, named):
        with pytest.raises(todoku.InvalidSetting, match="a consumer takes one event"):
            box.on("order.*")(function)
    box.on("order.*")(lenient)


def test_two_routes_to_one_destination_agree(box: todoku.App) -> None:
    box.route("order.*", to="warehouse", ordered=True)
    box.route("stock.*", to="warehouse", ordered=True)
    with pytest.raises(todoku.InvalidSetting, match=r"two routes to 'warehouse' differ in queue or ordered: order\.\*"):
        box.route("order.created", to="warehouse")


def test_options_of_a_call_are_checked_when_they_are_used(box: todoku.App) -> None:
    job = box.job(plain)
    for options, text in (
        ({"max_attempts": 0}, "max_attempts cannot be 0"),
        ({"timeout": -1}, "timeout cannot be -1"),
        ({"queue": ""}, "queue cannot be ''"),
        ({"priority": 16}, "priority cannot be 16"),
        ({"delay": -1}, "delay cannot be -1"),
        ({"retries": 1}, "no option retries"),
    ):
        with pytest.raises(todoku.InvalidMessage, match=text):
            job.using(**options).enqueue()  # type: ignore[arg-type]
