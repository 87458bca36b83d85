"""Arguments: what is stored is what the handler gets back, as its annotations say; what does not fit is named."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

import todoku
from tests.api.conftest import Attempt
from tests.support.world import World
from todoku.core.message import Claimed


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


class Order(msgspec.Struct, frozen=True):
    id: UUID
    amount: Decimal


class Line(pydantic.BaseModel):
    sku: str
    at: datetime
    count: int = pydantic.Field(default=1, gt=0)


class Options(TypedDict, total=False):
    loud: bool


class Pair(NamedTuple):
    left: int
    right: str


NOW = datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
ID = UUID("0190b0f0-0000-7000-8000-000000000001")
LINE = Line(sku="a", at=NOW)

VALUES: dict[str, tuple[Any, Any]] = {
    "int": (int, 7),
    "a large int": (int, 10**30),
    "float": (float, 1.5),
    "bool": (bool, True),
    "str": (str, "届く"),
    "None": (str | None, None),
    "list": (list[int], [1, 2]),
    "tuple": (tuple[int, str], (1, "a")),
    "set": (set[int], {1, 2}),
    "dict": (dict[str, list[float]], {"a": [1.0]}),
    "literal": (Literal["a", "b"], "b"),
    "uuid": (UUID, ID),
    "datetime": (datetime, NOW),
    "date": (date, NOW.date()),
    "time": (type(NOW.time()), NOW.time()),
    "timedelta": (timedelta, timedelta(minutes=5, microseconds=3)),
    "decimal": (Decimal, Decimal("1.10")),
    "enum": (Colour, Colour.RED),
    "int enum": (Level, Level.HIGH),
    "dataclass": (Point, Point(1, 2)),
    "dataclasses": (list[Point], [Point(1), Point(2)]),
    "struct": (Order, Order(ID, Decimal("9.99"))),
    "typed dict": (Options, {"loud": True}),
    "named tuple": (Pair, Pair(1, "a")),
    "constrained": (Annotated[int, msgspec.Meta(ge=1)], 3),
    "model": (Line, LINE),
    "model or none": (Line | None, LINE),
    "models": (dict[str, list[Line]], {"a": [LINE]}),
    "model or number": (Line | int, LINE),
    "number or model": (Line | int, 3),
    "anything": (Any, {"a": [1, None, "x"]}),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_as_it_was_given(name: str, box: todoku.App, attempt: Attempt) -> None:
    kind, value = VALUES[name]

    def handler(value: Any) -> Any:
        return value

    handler.__annotations__ = {"value": kind}
    job = box.job("handler")(handler)
    job.enqueue(value)
    (found,) = attempt()
    assert found == value
    assert type(found) is type(value)


WRONG: dict[str, tuple[Any, Any, str]] = {
    "a text for a number": (int, "7", "value: Expected `int`, got `str`"),
    "a fraction for a whole number": (int, 1.5, "value: Expected `int`, got `float`"),
    "a truth for a number": (int, True, "value: Expected `int`, got `bool`"),
    "a number for a text": (str, 7, "value: Expected `str`, got `int`"),
    "nothing for something": (str, None, "value: Expected `str`, got `null`"),
    "a wrong item": (list[int], [1, "2"], r"value\[1\]: Expected `int`, got `str`"),
    "a field that is missing": (Point, {"y": 1}, "value: Object missing required field `x`"),
    "a wrong field": (Point, {"x": "1"}, "value.x: Expected `int`, got `str`"),
    "no such choice": (Literal["a"], "b", "value: Invalid enum value 'b'"),
    "a model that does not validate": (Line, {"sku": "a", "at": NOW, "count": 0}, "value: count: .*greater than 0"),
    "neither model nor number": (Line | int, "x", "value: Line: .*; int: .*"),
    "no JSON": (Any, object(), "value: .*object has no JSON form"),
    "not a number": (float, float("nan"), "value: .*not JSON"),
    "a moment without a zone": (datetime, datetime(2026, 1, 1), "value: .*no time zone"),  # noqa: DTZ001
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_at_enqueue_by_its_name(name: str, box: todoku.App, world: World) -> None:
    kind, value, text = WRONG[name]

    def handler(value: Any) -> None: ...

    handler.__annotations__ = {"value": kind}
    with pytest.raises(todoku.InvalidMessage, match=f"handler: {text}"):
        box.job(handler).enqueue(value)
    assert world.deliveries() == []


def test_missing_and_extra_arguments_are_refused_with_the_signature(box: todoku.App, world: World) -> None:
    @box.job
    def welcome(ctx: todoku.Context, user_id: int, *, hobby: str) -> None: ...

    shown = r"\(it takes \(user_id: ('?)int\1, \*, hobby: ('?)str\2\)"
    for call, text in (
        (lambda: welcome.enqueue(hobby="go"), "missing a required .*argument: 'user_id'"),  # type: ignore[call-arg]
        (lambda: welcome.enqueue(1), "missing a required .*argument: 'hobby'"),  # type: ignore[call-arg]
        (lambda: welcome.enqueue(1, 2, hobby="go"), "too many positional arguments"),  # type: ignore[call-arg]
        (lambda: welcome.enqueue(1, hobby="go", age=3), "unexpected keyword argument 'age'"),  # type: ignore[call-arg]
    ):
        with pytest.raises(todoku.InvalidMessage, match=f"welcome: .*{text}.*{shown}"):
            call()
    assert world.deliveries() == []


def test_every_kind_of_parameter_is_passed_on_as_it_was(box: todoku.App, attempt: Attempt) -> None:
    @box.job
    def every(
        ctx: todoku.Context,
        first: int,
        /,
        second: int,
        third: int = 3,
        *rest: str,
        only: int,
        may: int = 6,
        **more: float,
    ) -> Any:
        return ctx.topic, first, second, third, rest, only, may, more

    every.enqueue(1, 2, only=5)
    every.enqueue(1, 2, 30, "a", "b", only=5, may=60, x=1.5, y=2.0)
    every.enqueue(1, second=2, only=5, z=0.5)
    assert attempt() == [
        ("every", 1, 2, 3, (), 5, 6, {}),
        ("every", 1, 2, 30, ("a", "b"), 5, 60, {"x": 1.5, "y": 2.0}),
        ("every", 1, 2, 3, (), 5, 6, {"z": 0.5}),
    ]
    with pytest.raises(todoku.InvalidMessage, match="every: x: Expected `float`, got `str`"):
        every.enqueue(1, 2, only=5, x="1")  # type: ignore[arg-type]


def test_a_parameter_may_have_any_name(box: todoku.App, attempt: Attempt) -> None:
    @box.job
    def odd(self: int, p0: int, _hidden: int, msgspec: int = 4) -> tuple[int, ...]:
        return self, p0, _hidden, msgspec

    odd.enqueue(1, 2, 3)
    assert attempt() == [(1, 2, 3, 4)]


def test_a_mutable_default_is_the_function_s_own(box: todoku.App, attempt: Attempt) -> None:
    default = [1, 2]

    @box.job
    def total(numbers: list[int] = default) -> Any:
        return numbers

    total.enqueue()
    assert attempt() == [default]


def test_a_class_declared_beside_its_handler_is_found(box: todoku.App, attempt: Attempt) -> None:
    """Annotations are texts here (PEP 563), and `Local` is no global."""

    @dataclass
    class Local:
        n: int

    @box.job
    def local(value: Local) -> int:
        return value.n

    local.enqueue(Local(3))
    assert attempt() == [3]


# --------------------------------------------------------------------------------- what others have stored

BAD: dict[str, tuple[object, str]] = {
    "a field of a wrong type": (
        {"user_id": "7"},
        "welcome: user_id: Expected `int`, got `str`; sent (user_id: str), takes (user_id: int)",
    ),
    "a field that is missing": ({}, "welcome: Object missing required field `user_id`; sent (), takes (user_id: int)"),
    "a field that nobody knows": (
        {"user_id": 7, "x": 1},
        "welcome: Object contains unknown field `x`; sent (user_id: int, x: int), takes (user_id: int)",
    ),
    "no object": ([7], "welcome: Expected `object`, got `array`; sent list, takes (user_id: int)"),
    "no JSON at all": (b"\x00\x01", "welcome takes JSON, and this message is application/octet-stream"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_payload_that_does_not_decode_is_aborted_before_anything_runs(
    name: str, box: todoku.App, attempt: Attempt
) -> None:
    """DESIGN §2: aborted before anything is sent, with the field and both sides in its text (S3-82)."""
    ran: list[int] = []

    @box.job
    def welcome(user_id: int) -> None:
        ran.append(user_id)

    box.route("user.created", to="welcome")
    payload, text = BAD[name]
    box.publish("user.created", payload, tx=None)
    assert attempt() == [todoku.Abort("BAD_PAYLOAD", text)]
    assert ran == []


async def test_an_async_handler_is_refused_its_payload_too(box: todoku.App, attempt: Attempt) -> None:
    @box.job
    async def welcome(ctx: todoku.Context, user_id: int, **more: Any) -> None: ...

    box.route("user.created", to=welcome)
    await box.apublish("user.created", {"user_id": None}, tx=None)
    text = "welcome: user_id: Expected `int`, got `null`; sent (user_id: null), takes (user_id: int, **more: Any)"
    assert attempt() == [todoku.Abort("BAD_PAYLOAD", text)]


def test_decoding_is_cheap(box: todoku.App, world: World, claims: Callable[[], list[Claimed]]) -> None:
    """About a microsecond an attempt; the bound is what a busy machine keeps, and far below what a slow way costs."""

    @box.job
    def welcome(user_id: int, hobby: str = "") -> None: ...

    welcome.enqueue(7, "go")
    (claim,) = claims()
    call, context = box.registry["welcome"].call, todoku.Context(claim)
    assert call is not None
    began = time.process_time()
    for _ in range(20_000):
        call(context)
    assert (time.process_time() - began) / 20_000 < 20e-6
