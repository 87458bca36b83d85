"""A delivery as text to copy: no text has a secret, and the pytest case really runs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.engine.test_timeline import delivery
from todoku.engine.diagnostics.snippets import HandlerCall, make_snippets

APP = """
import todoku

box = todoku.App("sqlite:///shop.db")

@box.job
def charge(amount: int, card: str, tags: list[str] = []) -> None:
    if amount < 0:
        raise ValueError("cannot charge a negative amount")

@box.job("media.resize")
async def resize(name: str, /, *sizes: int, quality: int = 80) -> None:
    assert sizes == (1, 2) and name == "it's \\"quoted\\"\\n" and quality == 90

@box.on("order.*")
def points(event: dict[str, int]) -> None:
    assert event == {"n": 1}
"""


def ran(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    """The case as a user runs it: in a file of a project whose App is `shop:box`."""
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "test_copied.py").write_text(text)
    source = Path(__file__).resolve().parents[2] / "src"
    environ = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{tmp_path}"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "todoku_app=shop:box",
        "test_copied.py",
    ]
    return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False)


def case(name: str, *args: Any, **kwargs: Any) -> str:
    call = HandlerCall(args=list(args), kwargs=kwargs)
    made = make_snippets(delivery("aborted", destination=name), call, url="http://127.0.0.1:8320").pytest
    assert made is not None
    ast.parse(made)
    return made


@pytest.mark.parametrize(
    "text",
    [
        case("charge", amount=5, card="***", tags=["x" * 60, "y" * 60, "z" * 60]),
        case("media.resize", 'it\'s "quoted"\n', 1, 2, quality=90),
        case("points", {"n": 1}),
    ],
    ids=["named", "positional", "event"],
)
def test_the_pytest_case_runs_the_handler(tmp_path: Path, text: str) -> None:
    done = ran(tmp_path, text)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pytest_case_fails_as_the_delivery_did(tmp_path: Path) -> None:
    done = ran(tmp_path, case("charge", amount=-5, card="4"))
    assert done.returncode == 1
    assert "cannot charge a negative amount" in done.stdout
    assert "test_charge_delivery_7" in done.stdout


def test_masked_and_missing_arguments_are_named() -> None:
    assert "*** is masked: put a value of your own there." in case("charge", card="***")
    call = HandlerCall(args=[], kwargs={}, note="The arguments are encrypted (90 bytes): open the message.")
    made = make_snippets(delivery("aborted"), call, url="http://x").pytest
    assert "# The arguments are encrypted" in (made or "")


@pytest.mark.parametrize(
    ("status", "act"), [("aborted", "replay 7"), ("succeeded", "replay 7 --again"), ("pending", "cancel 7")]
)
def test_commands_and_requests_are_those_for_its_state(status: str, act: str) -> None:
    made = make_snippets(delivery(status), None, url="http://127.0.0.1:8320/")
    assert f"todoku {act}" in made.cli
    assert 'curl -H "Authorization: Bearer $TODOKU_TOKEN" http://127.0.0.1:8320/api/v1/deliveries/7' in made.curl
    assert f"/api/v1/deliveries/7/{act.split(maxsplit=1)[0]}" in made.curl
    assert f"box.handle({str(UUID(int=1))!r}, 'd')" in made.python
    assert made.pytest is None
    ast.parse(made.python)
