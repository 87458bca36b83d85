"""What a type checker says of user code: the mistakes that matter are errors before the program runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CORRECT = """
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import assert_type
from uuid import UUID
import todoku

box = todoku.App("sqlite:///shop.db")
box.route("order.*", to="warehouse", ordered=True)
db = sqlite3.connect("shop.db")

message = box.publish("order.created", {"amount": 42}, tx=db, key="7", idempotency_key="k", priority=3)
assert_type(message, todoku.Message)
assert_type(message.id, UUID)
assert_type(message.duplicate, bool)
assert_type(message.key, str | None)
assert_type(message.created_at, datetime)
box.publish("order.created", tx=None, delay=timedelta(minutes=5), expires=60, headers={"a": "b"})
box.publish("order.created", b"raw", tx=db, at=datetime.now(UTC))
assert_type(box.publish_many([("order.created", {"n": n}) for n in range(3)], tx=db), list[todoku.Message])

async def create() -> UUID:
    assert_type(await box.apublish_many([("order.created", 1)], tx=None), list[todoku.Message])
    return (await box.apublish("order.created", {"amount": 42}, tx=None)).id
"""

WRONG = """
import todoku

box = todoku.App("sqlite:///shop.db", no_route="dead_letter")

async def wrong() -> None:
    box.publish("order.created", {"amount": 42})  # wrong: tx is missing
    await box.apublish("order.created", {"amount": 42})  # wrong: tx is missing
    box.publish_many([("order.created", {})])  # wrong: tx is missing
    await box.apublish_many([("order.created", {})])  # wrong: tx is missing
    box.publish("order.created", {}, None)  # wrong: tx by position
    box.publish("order.created", {}, tx=None, priority="x")  # wrong: priority is a number
    box.publish("order.created", {}, tx=None, delay="5s")  # wrong: seconds or a timedelta
    box.publish("order.created", {}, tx=None, headers={"attempt": 1})  # wrong: headers are texts
    box.publish("order.created", {}, tx=None, kay="7")  # wrong: no such option
    box.publish(("order.created", {}), tx=None)  # wrong: a topic is text
    box.publish_many(["order.created"], tx=None)  # wrong: pairs of topic and payload
    box.apublish("order.created", {}, tx=None).id  # wrong: not awaited
    box.publish("order.created", {}, tx=None).duplicate = True  # wrong: a message does not change
    todoku.App("sqlite:///shop.db", no_route="ignore")  # wrong: error or dead_letter
"""


def checked(where: Path, cache: Path, **programs: str) -> dict[str, set[int]]:
    """The lines of each program that `mypy --strict` complains about. What it learns of todoku is kept in `cache`."""
    for name, text in programs.items():
        (where / f"{name}.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-color-output", "--no-error-summary"]
    done = subprocess.run(
        [*command, f"--cache-dir={cache}", *(f"{name}.py" for name in programs)],
        cwd=where,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    found: dict[str, set[int]] = {name: set() for name in programs}
    for file, line in re.findall(r"^(\w+)\.py:(\d+): error: ", done.stdout, re.MULTILINE):
        found[file].add(int(line))
    return found


@pytest.mark.slow
@pytest.mark.xdist_group("mypy")
def test_a_correct_program_passes_and_each_mistake_is_found(tmp_path: Path, mypy_cache: Path) -> None:
    """API.md: `publish` without `tx`, or with a priority that is no number, is rejected by mypy --strict."""
    found = checked(tmp_path, mypy_cache, correct=CORRECT, wrong=WRONG)
    assert found["correct"] == set()
    marked = {number for number, line in enumerate(WRONG.splitlines(), 1) if "# wrong:" in line}
    assert found["wrong"] == marked
