"""What type checkers say of jobs and events: the mistakes of API.md are errors before the program runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import todoku
from tests.architecture.test_docs import BLOCKS
from tests.transactions.test_typing import checked

CORRECT = """
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID
from collections.abc import Sequence
import msgspec
from pydantic import BaseModel
import todoku
from todoku.core.ingest import Identity, ReceivedRequest

box = todoku.App("sqlite:///shop.db", require_tx=False)

@box.job(queue="mail", max_attempts=4, backoff=todoku.linear(minutes=5), timeout=30)
async def welcome(ctx: todoku.Context, user_id: int, hobby: str | None = None) -> str:
    assert_type(ctx.message_id, UUID)
    ctx.log.bind(user_id=user_id).info("welcome")
    return f"{user_id} {hobby}"

@box.job
def square(n: int) -> int:
    return n * n

@box.job
async def pause() -> None:
    raise todoku.Snooze(timedelta(seconds=5))

@box.job("shop.total", keep_result=True, run="thread", unique_for=60, ordered=True, transactional=True)
def total(ctx: todoku.Context, *numbers: int, scale: float = 1) -> float:
    return sum(numbers) * scale

assert_type(welcome.enqueue(7, hobby="go").result(), str)
assert_type(square.enqueue(1).result(timeout=5), int)
assert_type(square.enqueue(1).status(), todoku.Status)
assert_type(square.enqueue(1).id, UUID)
assert_type(total.using(priority=3, key="a", delay=5).enqueue(1, 2, scale=0.5).result(), float)
assert_type(pause.enqueue().cancel(by="ada", why="test"), bool)
assert_type(box.enqueue_many([square.call(n) for n in range(3)], tx=None), list[todoku.Handle[int]])
welcome.using(tx=None, at=datetime.now(UTC), expires=60, labels=["x"], headers={"a": "b"}, best_effort=True).enqueue(1)

@box.event("order.created", key="order_id")
@dataclass(frozen=True, slots=True)
class OrderCreated:
    order_id: UUID
    amount: int

@box.event("order.paid")
class OrderPaid(msgspec.Struct):
    order_id: int

@box.event("order.sent")
class OrderSent(BaseModel):
    order_id: int

@box.on(OrderCreated, name="points", transactional=True)
def add_points(ctx: todoku.Context, event: OrderCreated) -> None:
    assert_type(event.amount, int)

@box.on("order.*")
async def audit(event: dict[str, Any]) -> None: ...

box.route("order.**", to=todoku.log(), ordered=True)
box.route("order.**", to="elsewhere")
box.route("order.**", to=square)
box.route("order.**", to="https://partner.example/hooks", headers={"a": "b"}, timeout=timedelta(seconds=9))
box.route("stock.**", to=todoku.http("https://a.example", backoff=todoku.table(1)), ordered=True, on_dead="skip")

class Partner:  # a verifier whose parameters have names of their own
    secrets: tuple[str, ...] = ("s",)
    kept: tuple[str, ...] = ()

    def key(self, text: str) -> bytes:
        return text.encode()

    def signed_by(self, request: ReceivedRequest, tried: Sequence[bytes], at: float) -> int | None:
        return 0 if request.headers.get("x-signed") else None

    def identity(self, request: ReceivedRequest, body: object) -> Identity:
        return Identity(request.headers["x-id"])

box.ingest("partner", Partner(), topic="partner.{type}")

def to_file(message: todoku.Outgoing) -> None:
    assert_type(message.payload, bytes)

box.route("order.**", to=to_file, name="file")

def create(order_id: UUID, db: Any) -> None:
    assert_type(box.publish(OrderCreated(order_id, 42), tx=db), todoku.Message)
    box.publish(OrderPaid(7), tx=db, delay=5)
    box.publish(OrderSent(order_id=7), tx=db, key="7")
    many = box.publish_many([OrderPaid(7), ("order.created", {}), OrderSent(order_id=7)], tx=db)
    assert_type(many, list[todoku.Message])
    add_points.using(tx=db).enqueue(OrderCreated(order_id, 42))

async def later() -> None:
    handle = await welcome.aenqueue(7)
    assert_type(handle, todoku.Handle[str])
    assert_type(await handle.aresult(), str)
    assert_type(await square.using(tx=None).aenqueue(3), todoku.Handle[int])
    await box.apublish(OrderPaid(7), tx=None)
    await box.aenqueue_many([square.call(1)], tx=None)

def by_id(id: UUID) -> None:
    assert_type(square.handle(id).result(), int)
    assert_type(welcome.handle(str(id)), todoku.Handle[str])
    assert_type(square.handle(id).replay(by="ada", why="again", again=True).result(timeout=5), int)
    assert_type(square.handle(id).ended(), todoku.Status)
    assert_type(square.handle(id).error(), str | None)
    assert_type(box.handle(id), todoku.Handle[Any])
    assert_type(box.handle(7, destination="square").result(), Any)
    assert_type([each.reason for each in square.handle(id).attempts()], list[str])
    assert_type(square.handle(id).delivery().queue, str)

async def by_id_later(id: UUID) -> None:
    assert_type(await square.handle(id).aresult(timeout=5), int)
    assert_type(await box.ahandle(id), todoku.Handle[Any])
    assert_type((await square.handle(id).areplay(by="ada", why="again")), todoku.Handle[int])

assert_type(box.replay(reason="TIMEOUT", by="ada", why="it is back"), todoku.Replayed)
"""

WRONG = """
from dataclasses import dataclass
import todoku

box = todoku.App("sqlite:///shop.db")

@box.job
async def welcome(ctx: todoku.Context, user_id: int, hobby: str | None = None) -> str:
    return ""

@box.job(queue="mail")
def square(n: int) -> int:
    return n * n

@box.event("order.created")
@dataclass
class OrderCreated:
    amount: int

@box.on(OrderCreated)
def points(event: OrderCreated) -> None: ...

async def wrong() -> None:
    welcome.enqueue("7")  # wrong: a text for a number
    welcome.enqueue()  # wrong: missing
    welcome.enqueue(7, "go", 3)  # wrong: extra
    welcome.enqueue(7, age=3)  # wrong: no such parameter
    welcome.enqueue(user_id="7")  # wrong: a text for a number, by name
    await welcome.aenqueue("7")  # wrong: the same of the async form
    welcome.using(priority=1).enqueue("7")  # wrong: the same after using
    welcome.call("7")  # wrong: the same of a call
    square.enqueue(n=None)  # wrong: None for a number
    points.enqueue({"amount": 1})  # wrong: not the event
    welcome.using(priority="high")  # wrong: a number
    welcome.using(delays=5)  # wrong: no such option
    text: str = square.enqueue(1).result()  # wrong: it returns a number
    number: int = await (await welcome.aenqueue(7)).aresult()  # wrong: it returns a text
    square.enqueue(1).cancel()  # wrong: by and why
    handled: str = square.handle("id").result()  # wrong: it returns a number
    square.handle(7)  # wrong: a number is a delivery's, and this takes a message's id
    square.handle("id").replay()  # wrong: by and why
    box.handle(1.5)  # wrong: neither a number nor an id
    box.publish(OrderCreated(1))  # wrong: tx is missing
    box.publish_many([OrderCreated(1)])  # wrong: tx is missing
    await box.apublish(OrderCreated(1))  # wrong: tx is missing
    box.enqueue_many([square.call(1)])  # wrong: tx is missing
    box.publish(7, tx=None)  # wrong: neither topic nor event
    box.replay("id", by="ada")  # wrong: why is missing
    box.job(retries=3)  # wrong: no such option
    box.job(run="fibre")  # wrong: no such way to run
    box.route("order.*", to=7)  # wrong: no destination
    box.route("order.*", to="x", on_dead="drop")  # wrong: park or skip
    box.route("order.*", to="x", retries=3)  # wrong: no such option
    todoku.Retry(after="5s")  # wrong: seconds or a timedelta
    todoku.Abort()  # wrong: a reason
"""


def marked(program: str) -> set[int]:
    return {number for number, line in enumerate(program.splitlines(), 1) if "# wrong:" in line}


@pytest.mark.slow
@pytest.mark.xdist_group("mypy")
def test_mypy_finds_each_mistake_and_nothing_else(tmp_path: Path, mypy_cache: Path) -> None:
    """API.md: a wrong, missing or extra argument, and `publish` without `tx`, are rejected; results are inferred."""
    found = checked(tmp_path, mypy_cache, correct=CORRECT, wrong=WRONG)
    assert found["correct"] == set()
    assert found["wrong"] == marked(WRONG)


def pyright(where: Path, files: Mapping[str, str]) -> list[dict[str, Any]]:
    """The errors that pyright finds in these files: the one TODOKU_TEST_PYRIGHT names, or the build of it for tests."""
    program = os.environ.get("TODOKU_TEST_PYRIGHT") or str(Path(sys.executable).with_name("basedpyright"))
    source = str(Path(todoku.__file__).parents[1])
    options = {"typeCheckingMode": "standard", "extraPaths": [source]}
    (where / "pyrightconfig.json").write_text(json.dumps(options), encoding="utf-8")
    for name, text in files.items():
        (where / f"{name}.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [program, "--outputjson", "--pythonpath", sys.executable, *(f"{name}.py" for name in files)],
        cwd=where,
        capture_output=True,
        text=True,
        check=False,
    )
    return [each for each in json.loads(done.stdout)["generalDiagnostics"] if each["severity"] == "error"]


@pytest.mark.slow
def test_pyright_finds_each_mistake_and_nothing_else(tmp_path: Path) -> None:
    """The same by pyright."""
    told = pyright(tmp_path, {"correct": CORRECT, "wrong": WRONG})
    lines = {(Path(each["file"]).stem, each["range"]["start"]["line"] + 1) for each in told}
    assert lines == {("wrong", number) for number in marked(WRONG)}, told


@pytest.mark.slow
def test_pyright_accepts_every_documented_line(tmp_path: Path) -> None:
    """Every block that runs by itself; Django has no types of its own, and its block would need django-stubs."""
    documented = {
        re.sub(r"\W", "_", block.id): block.code
        for block in BLOCKS
        if "no-run" not in block.info and "import django" not in block.code
    }
    assert len(documented) > 30
    told = pyright(tmp_path, documented)
    assert [(each["file"], each["range"]["start"]["line"] + 1, each["message"]) for each in told] == []
