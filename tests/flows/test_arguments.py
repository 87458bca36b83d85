"""Arguments of steps: equal ones are the same step in every process, and what cannot be one says what to do."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import uuid4

import msgspec
import pytest

import todoku
from todoku.core.errors import InvalidMessage
from todoku.engine.publish import encode

_PROGRAM: Final = """
from dataclasses import dataclass
import msgspec
from pydantic import BaseModel
from todoku.engine.publish import encode

class Struct(msgspec.Struct):
    names: set[str]

class Model(BaseModel):
    names: frozenset[str]
    more: dict[str, list[set[str]]]

@dataclass
class Record:
    names: set[str]
    inner: Struct

names = {"tea", "rice", "beans", "salt", "oil"}
model = Model(names=names, more={"a": [names]})
for value in (names, Struct(names), model, [model], Record(names, Struct(names)), {"a": Struct(names)}):
    print(encode(value))
"""


def test_a_set_has_the_same_digest_in_every_process() -> None:
    """R14: a worker with another seed of hashes would take the step for a changed one, and repeat its effect."""
    seeds = ("1", "2", "3", "4")
    texts = {
        subprocess.run(
            [sys.executable, "-c", _PROGRAM], env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in seeds
    }  # fmt: skip
    assert len(texts) == 1
    assert '["beans","oil","rice","salt","tea"]' in texts.pop()


class Mixed(msgspec.Struct):
    values: set[int | str]


def test_a_set_that_has_no_order_says_so() -> None:
    with pytest.raises(InvalidMessage, match="Mixed has a set, or a dict, whose values cannot be sorted"):
        encode(Mixed({1, "a"}))


def ident(value: Any) -> Any:
    return value


def count(number: int) -> int:
    return number


async def count_later(number: int) -> int:
    return number


LONG: Final = "x" * 513
WRONG: Final[dict[str, tuple[Callable[[todoku.Flow], Awaitable[Any]], str]]] = {
    "a result instead of a function": (lambda ctx: ctx.step(count(1)), "is no function (give the function and then"),
    "NaN": (lambda ctx: ctx.step(ident, math.nan), "NaN has no JSON"),
    "a sleep of NaN": (lambda ctx: ctx.sleep(math.nan), "cannot sleep for nan (give seconds"),
    "an endless sleep": (lambda ctx: ctx.sleep(hours=math.inf), "cannot sleep for hours=inf (give seconds"),
    "a sleep in words": (lambda ctx: ctx.sleep("1h"), "cannot sleep for '1h' (give seconds"),
    "a wait without a name": (lambda ctx: ctx.wait(""), "the name of a signal has 0 characters (1 to 255"),
    "a wait for NUL": (lambda ctx: ctx.wait("a\0b"), "the name of a signal has a NUL character (leave it out)"),
    "a wait for no type": (lambda ctx: ctx.wait("approval", 5), "(use plain types"),
    "a publish with a transaction": (lambda ctx: ctx.publish("a", {}, tx=None), "takes no tx: it commits"),
    "a number as key": (lambda ctx: ctx.step(count, 1, key=5), "the key must be text, not int (pass str(key))"),
    "an empty key": (lambda ctx: ctx.step(count, 1, key=""), "the key has 0 characters (1 to 512"),
    "a long key": (lambda ctx: ctx.uuid(key=LONG), "the key has 513 characters (1 to 512"),
    "a number as backoff": (lambda ctx: ctx.step(count, 1, backoff=5), "backoff cannot be 5 (backoff=todoku."),
    "an undo that is no function": (lambda ctx: ctx.step(count, 1, undo="refund"), "'refund' is no function"),
}  # fmt: skip
"""What a workflow does wrong, and what the dead letter says about it."""


@pytest.mark.parametrize("wrong", WRONG)
def test_what_no_step_can_have_stops_the_run_and_says_what_to_do(box: todoku.App, wrong: str) -> None:
    """At its first attempt: trying again would not help, and a wait that no signal can end would never."""
    do, said = WRONG[wrong]

    @box.workflow
    async def fulfil(ctx: todoku.Flow) -> None:
        await do(ctx)

    run = fulfil.start()
    box.drain()
    assert (run.status(), run.delivery().reason, run.delivery().attempts) == ("aborted", "INVALID_STEP", 1)
    assert said in (run.delivery().error or "")


def test_children_of_many_jobs_are_one_step(box: todoku.App) -> None:
    """Its name would have all of theirs, and an index of PostgreSQL takes 2,700 bytes."""
    jobs = [box.job(f"{uuid4().hex}-{uuid4().hex}-{uuid4().hex}")(count_later) for _ in range(60)]

    @box.workflow
    async def fulfil(ctx: todoku.Flow) -> list[int]:
        return await ctx.gather(*(job.call(number) for number, job in enumerate(jobs)))

    run = fulfil.start()
    box.drain()
    assert run.result() == list(range(60))
