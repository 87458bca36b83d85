"""The traceback of a failed attempt: the user's own frames, without local variables, wherever a person looks for it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import todoku
from tests.engine.test_processes import crew_of, enqueue
from tests.support.crew import Crew
from tests.support.world import SOMEBODY, World
from todoku.core.outcome import Abort, Traceback
from todoku.engine.context import Context
from todoku.engine.tracebacks import LOGGED_BYTES, TEXT_BYTES, format_dump, format_error, is_user_code
from todoku.store.attempts import Attempt
from todoku.store.deliveries import Filter

CANARY = "canary-4111-1111"
HERE = Path(__file__)


def price(goods: dict[str, int], name: str) -> int:
    return goods[name]


def charge(order: str) -> int:
    secret_local = f"local of {order}"
    try:
        return price({}, order) + len(secret_local)
    except KeyError as error:
        raise ValueError(f"no price for {order}") from error


def raised(call: Callable[..., object], *arguments: object) -> Exception:
    try:
        call(*arguments)
    except Exception as error:
        return error
    raise AssertionError("it was to fail")


def formatted(error: BaseException, which: Any = "user", package: str = "shop") -> Traceback:
    found = format_error(error, package, which)
    assert found is not None
    return found


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(HERE.read_text("utf-8").splitlines(), 1) if text in line)


# --------------------------------------------------------------------------------------------- formatting


def test_it_has_file_line_and_source_of_the_failing_function_and_the_chain_of_causes() -> None:
    text = formatted(raised(charge, "shoes")).text
    cause, effect = text.split("\nThe above exception was the direct cause of the following exception:\n\n")
    assert f'File "{HERE}", line {line_of("    return goods[name]")}, in price\n    return goods[name]' in cause
    assert cause.rstrip().endswith("KeyError: 'shoes'")
    assert f"line {line_of('from error')}, in charge" in effect
    assert effect.endswith("ValueError: no price for shoes\n")


def test_it_never_has_the_value_of_a_local_variable() -> None:
    assert "local of shoes" not in formatted(raised(charge, "shoes"), "full").text


def test_what_a_log_may_show_has_the_same_frames_without_the_texts_of_exceptions() -> None:
    """S0-94."""
    found = formatted(raised(charge, CANARY))
    assert CANARY in found.text
    assert CANARY not in found.frames
    assert re.findall(r"line \d+, in \w+", found.frames) == re.findall(r"line \d+, in \w+", found.text)
    assert [line for line in found.frames.splitlines() if "Error" in line and " " not in line] == [
        "KeyError",
        "ValueError",
    ]


def test_frames_of_libraries_are_counted_and_the_last_one_is_shown() -> None:
    error = raised(json.loads, '{"a": [')
    users, full = formatted(error).text, formatted(error, "full").text
    assert "  … 2 frames of json\n" in users
    assert "raw_decode" in users
    assert "in decode" not in users
    assert "in decode" in full


def test_off_keeps_none() -> None:
    assert format_error(raised(charge, "x"), "shop", "off") is None


def test_a_fingerprint_is_the_same_for_the_same_functions_whatever_the_data_and_the_depth() -> None:
    def deep(number: int) -> int:
        return deep(number - 1) if number else price({}, "x")

    assert formatted(raised(charge, "a")).fingerprint == formatted(raised(charge, "b")).fingerprint
    assert formatted(raised(deep, 3)).fingerprint == formatted(raised(deep, 30)).fingerprint
    different = {formatted(raised(call, *given)).fingerprint for call, given in ((charge, ("a",)), (price, ({}, "a")))}
    assert len(different) == 2


def test_a_long_one_is_cut_in_the_middle_and_keeps_both_ends() -> None:
    def many(number: int) -> None:
        if number == 0:
            raise ValueError("é" * 100_000)
        other(number)

    def other(number: int) -> None:
        many(number - 1)

    found = formatted(raised(many, 200), "full")
    assert len(found.text.encode()) <= TEXT_BYTES
    assert len(found.frames.encode()) <= LOGGED_BYTES
    assert found.text.startswith("Traceback (most recent call last):\n")
    assert "ValueError: éé" in found.text
    assert "\n  …\n" in found.frames


def test_members_of_a_group_notes_and_broken_texts_are_shown() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    noted = ValueError("one")
    noted.add_note("seen at noon")
    text = formatted(raised(_raise, ExceptionGroup("two", [noted, Mute()]))).text
    assert "  1 of 2 in the group:\n    ValueError: one\nseen at noon\n" in text
    assert "Mute: (its text cannot be read)" in text


def test_secrets_in_urls_and_characters_that_no_database_stores_are_removed() -> None:
    text = formatted(raised(_raise, ValueError("GET https://me:pass@shop.example/a?token=1 \0 \ud800"))).text
    assert text.endswith("ValueError: GET https://shop.example/a?… \N{REPLACEMENT CHARACTER} ?\n")


def test_a_chain_that_leads_back_to_itself_ends() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert formatted(one).text.count("ValueError: ") == 2


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("file", "package", "is_users"),
    [
        ("/srv/shop/orders.py", "shop", True),
        ("/usr/lib/python3/dist-packages/requests/api.py", "requests", False),
        ("/venv/lib/python3.11/site-packages/requests/api.py", "requests", False),
        ("/venv/lib/python3.11/site-packages/shop/orders.py", "shop", True),
        ("C:\\venv\\Lib\\site-packages\\requests\\api.py", "requests", False),
        (json.__file__, "json", False),
        (todoku.__file__, "todoku", False),
        ("<frozen importlib._bootstrap>", "importlib", False),
        ("<stdin>", "__main__", True),
    ],
)
def test_user_code_is_what_is_neither_a_library_nor_pythons_nor_ours(file: str, package: str, is_users: bool) -> None:
    """An application that is installed into its image as a package is user code, too."""
    assert is_user_code(file, package, "shop") is is_users


def test_a_dump_without_frames_is_no_stack() -> None:
    assert format_dump("", "shop", "user") is None
    assert format_dump("Fatal Python error\n", "shop", "user") is None


# ----------------------------------------------------------------------------------------- in a worker


def attempts(world: World) -> list[Attempt]:
    return list(world.store.attempts.of_all([row.id for row in world.deliveries()]))


def last_attempt(world: World) -> Attempt:
    return attempts(world)[-1]


@pytest.mark.parametrize("run", ["loop", "thread"])
def test_the_traceback_of_a_failed_attempt_is_stored_with_it(world: World, crew: Crew, run: Any) -> None:
    async def in_loop(ctx: Context) -> None:
        charge("shoes")

    def in_thread(ctx: Context) -> None:
        charge("shoes")

    crew.handles("warehouse", in_loop if run == "loop" else in_thread, run=run)
    world.publish()
    crew.drain()
    found = last_attempt(world)
    assert found.traceback is not None
    assert f'File "{HERE}", line {line_of("    return goods[name]")}, in price' in found.traceback
    assert found.traceback.startswith(f'Traceback (most recent call last):\n  File "{HERE}"'), "no frame of todoku's"
    (row,) = world.deliveries()
    assert row.fingerprint == found.fingerprint is not None


def test_an_outcome_that_is_returned_has_no_traceback_and_one_that_is_raised_has(world: World, crew: Crew) -> None:
    async def returns(ctx: Context) -> Abort:
        return Abort("NEVER")

    async def raises(ctx: Context) -> None:
        raise Abort("NEVER") from ValueError("the cause")

    crew.handles("warehouse", returns)
    world.publish()
    crew.drain()
    assert last_attempt(world).traceback is None
    crew.registry._targets.clear()
    crew.handles("warehouse", raises)
    world.publish()
    crew.drain()
    assert "ValueError: the cause" in (last_attempt(world).traceback or "")


def test_success_stores_no_traceback_and_off_neither(world: World, crew: Crew) -> None:
    crew.handles("warehouse")
    world.publish()
    crew.drain()
    assert attempts(world) == []

    async def fails(ctx: Context) -> None:
        charge("x")

    crew.registry._targets.clear()
    crew.handles("warehouse", fails)
    world.publish()
    crew.drain(tracebacks="off")
    found = last_attempt(world)
    assert (found.traceback, found.fingerprint) == (None, None)
    assert found.error == "ValueError: no price for x"


@pytest.mark.parametrize("run", ["loop", "thread"])
def test_a_timeout_has_the_stack_where_the_handler_stood(world: World, crew: Crew, run: Any) -> None:
    release = threading.Event()

    async def endless(ctx: Context) -> None:
        await asyncio.sleep(3600)

    def stuck(ctx: Context) -> None:
        release.wait(60)

    crew.handles("warehouse", endless if run == "loop" else stuck, run=run, timeout=0.2)
    world.publish()
    try:
        crew.drain()
    finally:
        release.set()
    text = last_attempt(world).traceback or ""
    assert text.startswith("Stack of the handler when it was stopped (most recent call last):\n")
    assert ("await asyncio.sleep(3600)" if run == "loop" else "release.wait(60)") in text


def test_a_process_formats_its_own_traceback(world: World) -> None:
    enqueue(world, "fail")
    crew_of(world).drain()
    text = last_attempt(world).traceback or ""
    assert "apart.py" in text
    assert "raise Peculiar(1, 2)" in text
    assert "Peculiar: 3" in text


def test_a_process_that_is_killed_at_its_timeout_has_told_where_it_stood(world: World, tmp_path: Path) -> None:
    """The handler sleeps and never returns to Python: faulthandler answers all the same."""
    enqueue(world, "forever", mark=str(tmp_path / "mark"))
    world.sql("update todoku_delivery set timeout = 8")
    crew_of(world).drain()
    found = last_attempt(world)
    assert found.reason == "TIMEOUT"
    assert "in forever\n    time.sleep(30)" in (found.traceback or "")


def test_a_destination_that_told_its_reason_gets_no_traceback_and_a_bug_in_it_does(world: World, crew: Crew) -> None:
    class Shop:
        name = "warehouse"
        error: Exception = todoku.DeliveryError("SHOP_CLOSED")

        async def send(self, batch: object) -> None:
            raise self.error

    shop = Shop()
    crew.sends(shop)
    world.publish()
    crew.drain()
    assert last_attempt(world).traceback is None
    shop.error = KeyError("bug")
    world.advance(60)
    crew.drain()
    assert "raise self.error" in (last_attempt(world).traceback or "")


def test_dead_letters_are_grouped_and_found_by_fingerprint_until_they_are_replayed(world: World, crew: Crew) -> None:
    async def fails(ctx: Context) -> None:
        (charge if ctx.claim.id % 2 else price)(*(("a",) if ctx.claim.id % 2 else ({}, "a")))  # type: ignore[operator]

    crew.handles("warehouse", fails)
    world.publish(5, max_attempts=1)
    crew.drain()
    assert [group.number for group in world.store.statistics.dead_letters()] == [5]
    groups = world.store.statistics.dead_letters(by_fingerprint=True)
    assert sorted(group.number for group in groups) == [2, 3]
    which = Filter(fingerprint=groups[0].fingerprint)
    found = world.store.deliveries.find(which).items
    assert len(found) == groups[0].number
    assert {row.fingerprint for row in found} == {groups[0].fingerprint}
    world.store.acts.replay(which, SOMEBODY)
    assert world.store.deliveries.find(which).items == ()
    assert world.store.attempts.of(found[0].id)[0].fingerprint == groups[0].fingerprint, "the attempt keeps its own"


def test_what_a_person_or_a_deadline_ends_has_no_fingerprint(world: World, crew: Crew) -> None:
    async def fails(ctx: Context) -> None:
        charge("x")

    crew.handles("warehouse", fails)
    world.publish(2)
    crew.drain()
    assert all(row.fingerprint for row in world.deliveries())
    first, second = (row.id for row in world.deliveries())
    world.store.acts.cancel(Filter(ids=(first,)), SOMEBODY)
    world.store.acts.settle_by_hand(Filter(ids=(second,)), SOMEBODY, succeeded=False)
    assert [row.fingerprint for row in world.deliveries()] == [None, None]


# ------------------------------------------------------------------------------------ where people look


def test_the_log_has_file_and_line_on_a_line_of_its_own_and_no_text_of_the_error(
    world: World, crew: Crew, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(ctx: Context) -> None:
        charge(CANARY)

    crew.handles("warehouse", fails)
    world.publish()
    with caplog.at_level(logging.WARNING, "todoku"):
        crew.drain()
    settled, traced = (record for record in caplog.records if str(record.msg).startswith(("settled", "TRACEBACK")))
    assert "traceback" not in vars(settled), "the attempt's line keeps its fields"
    assert f'File "{HERE}", line {line_of("    return goods[name]")}, in price' in vars(traced)["traceback"]
    assert vars(traced)["outbox_id"] == vars(settled)["outbox_id"], "structured fields, for other people's handlers"
    assert vars(traced)["error_type"] == "ValueError"
    assert CANARY not in caplog.text


PROGRAM = """
import asyncio, sys
import todoku

box = todoku.App(sys.argv[1])

def inner(goods):
    return goods["missing"]

@box.job(max_attempts=1)
async def charge() -> None:
    inner({})

async def main():
    async with box.lifespan():
        handle = await charge.aenqueue()
        while await handle.astatus() != "aborted":
            await asyncio.sleep(0.02)

box.migrate()
if sys.argv[2] == "lifespan":
    asyncio.run(main())
else:
    charge.enqueue()
    box.drain()
box.close()
"""


@pytest.mark.parametrize("way", ["lifespan", "drain"])
def test_a_program_that_configures_no_logging_sees_why_its_job_failed(url: str, tmp_path: Path, way: str) -> None:
    """Python itself prints warnings and errors of a logger that has no handler; nothing swallows them."""
    program = tmp_path / "shop.py"
    program.write_text(PROGRAM, "utf-8")
    done = subprocess.run(
        [sys.executable, str(program), url, way], capture_output=True, text=True, check=False, timeout=120,
        env=os.environ | {"PYTHONPATH": str(Path(todoku.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "status=aborted" in done.stderr
    assert f'File "{program}", line 8, in inner' in done.stderr
    assert 'return goods["missing"]' in done.stderr
    assert "status=succeeded" not in done.stderr


def test_a_job_of_an_installed_package_is_user_code(world: World, crew: Crew, tmp_path: Path) -> None:
    folder = tmp_path / "site-packages" / "shop"
    folder.mkdir(parents=True)
    (folder / "orders.py").write_text("async def charge(ctx):\n    return {}['missing']\n", "utf-8")
    module = _load("shop.orders", folder / "orders.py")
    crew.handles("warehouse", module.charge, reference="shop.orders:charge")
    world.publish()
    crew.drain()
    assert "line 2, in charge" in (last_attempt(world).traceback or "")


def _load(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
