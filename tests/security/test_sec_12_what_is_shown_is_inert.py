"""SEC-12: control characters in what the command line, the log, the pages and JSON show are text that can be read.

The hostile text has escape sequences of both kinds (C0 and C1), a carriage return, a newline, separators of lines, and
Unicode's overrides and isolates of direction.
"""

from __future__ import annotations

import ast
import io
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

import todoku
from tests.architecture.test_layers import FILES, ROOT, parsed, place
from tests.cli.conftest import commands, run, shop  # noqa: F401 - fixtures
from tests.cli.program import Shop
from tests.cli.test_screens import on_terminal
from tests.support.serving import Server
from tests.support.world import SOMEBODY
from todoku.api.problem import problem_bytes
from todoku.cli.main import cli
from todoku.core.capture import TableRule
from todoku.core.control_characters import encode_json, escape_controls
from todoku.core.decision import Settlement
from todoku.core.destination import Outgoing
from todoku.core.flow import RUN, StepRow
from todoku.core.limit import Limit
from todoku.core.status import Status
from todoku.destinations.log import log as log_destination
from todoku.engine.observability.log import Log, configure_logging

HOSTILE = "a\x1b[2J\x1b]0;t\x07\rb\n\x9b31mc\u202ed\u2066e\x7f\u2028f\x85g\u200fh"
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What may be in no output. A newline ends a line; that none is forged is looked at by the number of lines."""

READABLE = r"\u202ed\u2066e"
"""A part of the hostile text as it is to be shown."""


def assert_inert(text: str) -> None:
    assert CONTROL.search(text) is None, ascii(text)
    assert READABLE in text, f"it is not shown at all: {text!a}"


# ------------------------------------------------------------------------------------------------ the core


def test_SEC_12_every_control_character_can_be_read_and_text_is_left_alone() -> None:
    assert escape_controls(HOSTILE) == (
        r"a\x1b[2J\x1b]0;t\x07\rb\n\x9b31mc\u202ed\u2066e\x7f\u2028f\x85g\u200fh"
    )  # fmt: skip
    for text in ("", "plain", "届く　です", "naïve – 3 × 4", "👩‍🚀", "می‌خواهم", r"C:\new"):
        assert escape_controls(text) == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_SEC_12_escaped_json_is_the_same_value(text: str) -> None:
    encoded = encode_json({text: [text]}).decode()
    assert CONTROL.search(encoded) is None
    assert "\n" not in encoded
    assert json.loads(encoded) == {text: [text]}


@given(st.text())
def test_SEC_12_whatever_is_escaped_is_inert_and_can_be_written(text: str) -> None:
    escaped = escape_controls(text)
    assert CONTROL.search(escaped) is None
    assert "\n" not in escaped
    escaped.encode()


# ------------------------------------------------------------------------------------------- the command line

ONE = Limit(concurrency=1)


def hostile_database(the_shop: Shop) -> tuple[int, str]:
    """Everything that people may name is named by the hostile text. A delivery's number, and its message's id."""
    world = the_shop.world
    (message,) = world.publish(
        to=(HOSTILE,), queue=HOSTILE, key=HOSTILE, headers={HOSTILE: HOSTILE, RUN: "auto"},
        payload=lambda _: {HOSTILE: HOSTILE}, per_key=ONE,
    )  # fmt: skip
    claims = world.claim_gates(world.worker(name=HOSTILE), ONE)
    assert len(claims) == 1
    step = StepRow(key=HOSTILE, number=1, name=HOSTILE, kind="step", state="failed", error=HOSTILE)
    world.store.runs.store_steps([(claims[0], step)])
    world.settle(claims, Settlement(status=Status.ABORTED, reason=HOSTILE, error=HOSTILE))
    world.publish(2, to=(HOSTILE,), queue=HOSTILE, key=HOSTILE, per_key=ONE)
    assert len(world.claim_gates(world.worker(name=HOSTILE), ONE)) == 1, "the key is at its limit"
    world.store.limits.set(HOSTILE, SOMEBODY, of="queue", concurrency=1, rate=None)
    rule = TableRule(f"public.{HOSTILE}", HOSTILE, (HOSTILE,))
    world.store.captures.declare(HOSTILE, [rule], snapshot=True)
    world.store.captures.set_state(HOSTILE, "stopped", reason="BAD_STREAM", why=HOSTILE, fence=None)
    return claims[0].id, str(message.id)


BY = ("--by", HOSTILE, "--why", HOSTILE)
SHOWN: dict[str, tuple[tuple[str, ...], ...]] = {
    "status": ((),),
    "stats": ((),),
    "list": ((), ("--status", "aborted")),
    "search": (("status:aborted",),),
    "reasons": ((),),
    "workers": ((),),
    "tail": (("--since", "1h", "--for", "0"),),
    "show": (("{delivery}",), ("{message}",)),
    "explain": (("{waiting}",),),
    "ledger": ((HOSTILE, "--scope", HOSTILE),),
    "limits": ((),),
    "limit": ((HOSTILE, "--concurrency", "1", *BY),),
    "pause": ((HOSTILE, *BY), (f"other {HOSTILE}", *BY)),
    "resume": ((HOSTILE, *BY),),
    "publish": ((HOSTILE, "{{}}", "--to", "shop"),),
    "capture": (("list",), ("show", HOSTILE), ("snapshot", HOSTILE, *BY)),
    "schedule": (("pause", HOSTILE, *BY), ("run", HOSTILE, *BY)),
    "flow": (("show", "{message}"),),
}
"""Commands that print names from outside, and how they are called here."""

NOTHING_OF_OTHERS = {
    "batch", "cancel", "clear", "copy", "debezium-config", "dev", "dlq-rerun", "dlq-sync", "doctor", "edit",
    "encryption-keys", "enqueue", "hooks", "migrate", "projection", "release-expired", "replay", "run", "schedules",
    "settings", "settle", "signing-keys", "spool-forward", "tokens", "up", "users", "verify",
}  # fmt: skip
"""They print numbers and ids, what was typed, or what is in the program; through `say` and tables like the others."""

FAILS = {"ledger", "schedule"}
"""They find nothing of that name here, and say so on stderr, whether or not JSON is asked for."""


def test_SEC_12_every_command_is_looked_at() -> None:
    assert {*SHOWN, *NOTHING_OF_OTHERS} == set(cli.commands)


def test_SEC_12_no_command_obeys_what_it_prints(shop: Shop) -> None:  # noqa: F811 - the fixture
    delivery, message = hostile_database(shop)
    waiting = next(row.id for row in shop.world.deliveries() if row.status == "pending")
    ids = {"delivery": delivery, "message": message, "waiting": waiting}
    for command, calls in SHOWN.items():
        for call in calls:
            arguments = [each if HOSTILE in each else each.format(**ids) for each in call]
            done = shop.run(command, *arguments)
            assert_inert(done.stdout + done.stderr)
            if command in FAILS:
                assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), "no line is forged"


def test_SEC_12_neither_does_a_screen_on_a_terminal(shop: Shop) -> None:  # noqa: F811 - the fixture
    """There, too, the only escape sequences are those of todoku's own colours: none with NO_COLOR."""
    delivery, _ = hostile_database(shop)
    looked_at = ("status", "list", "reasons", "tail --since 1h --for 0", f"show {delivery}", f"explain {delivery}")
    for screen in looked_at:
        assert_inert(on_terminal(shop, 400, screen, NO_COLOR="1"))


def test_SEC_12_json_of_commands_is_inert_and_says_the_same(shop: Shop) -> None:  # noqa: F811 - the fixture
    delivery, _ = hostile_database(shop)
    for command in ("list", "reasons", "workers", "limits", "show"):
        done = shop.run(command, *([str(delivery)] if command == "show" else []), "--json")
        assert_inert(done.stdout)
        assert any(HOSTILE in each for line in done.stdout.splitlines() for each in texts(json.loads(line)))


def texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)


def test_SEC_12_a_pass_by_hand_prints_errors_of_handlers_inertly(shop: Shop, tmp_path: Any) -> None:  # noqa: F811
    (tmp_path / "hostile_app.py").write_text(
        f"import todoku\nbox = todoku.App()\n@box.job\ndef boom() -> None:\n    raise ValueError({HOSTILE!r})\n"
    )
    shop.run("enqueue", "boom", "--app", "hostile_app:box")
    done = shop.run("run", "--once", "--app", "hostile_app:box")
    assert_inert(done.stdout)
    assert done.stdout.count("\n") == 2, "one line for the pass, and one for the attempt"


def test_SEC_12_commands_print_through_one_place() -> None:
    """`say`, tables and JSON escape; a command that called `click.echo` itself would not."""
    found = [
        place(path, node.lineno)
        for path in FILES
        if path.parent == ROOT / "cli" and path.name != "output.py"
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"click.echo", "click.secho", "print"}
    ]
    assert found == []


# ------------------------------------------------------------------------------------------------------ the log


@contextmanager
def logging_to(style: Any) -> Iterator[io.StringIO]:
    stream = io.StringIO()
    root, ours = logging.getLogger(), logging.getLogger("todoku")
    before = [(logger, [*logger.handlers], logger.level, logger.propagate) for logger in (root, ours)]
    root.handlers.clear()  # pytest's own cannot report half of a pair
    configure_logging(style, stream=stream)
    try:
        yield stream
    finally:
        logging.captureWarnings(False)
        for logger, handlers, level, propagates in before:
            logger.handlers[:], logger.level, logger.propagate = handlers, level, propagates


@pytest.mark.parametrize("style", ["text", "json"])
def test_SEC_12_log_lines_are_inert(style: str) -> None:
    with logging_to(style) as stream:
        Log(correlation_id=HOSTILE).info("handled", note=HOSTILE, **{"odd name": [HOSTILE]})
        logging.getLogger("other").warning("%s happened", HOSTILE)
        logging.getLogger("other").warning("half a pair %s", "\ud800" + HOSTILE)
    written = stream.getvalue()
    assert_inert(written)
    assert written.count("\n") == 3
    if style == "json":
        assert json.loads(written.splitlines()[0])["note"] == HOSTILE


def test_SEC_12_settled_attempts_are_logged_inertly(box: todoku.App) -> None:
    """They are written by the batch, past the formatter."""

    box.route("told.**", to=log_destination(HOSTILE, stream=io.StringIO()))
    with logging_to("json") as stream:
        box.publish("told.once", {}, tx=None)
        box.drain()
    settled = [line for line in stream.getvalue().splitlines() if '"settled"' in line]
    assert len(settled) == 1
    assert_inert(settled[0])


async def test_SEC_12_the_destination_log_prints_one_line_a_message() -> None:
    stream = io.StringIO()
    message = Outgoing(
        message_id=str(uuid4()), idempotency_key="k", topic="a", key=HOSTILE, headers={}, payload=HOSTILE.encode(),
        content_type="text/plain", attempt=1, created_at=0.0,
    )  # fmt: skip
    await log_destination(payload=True, stream=stream).send([message])
    assert_inert(stream.getvalue())
    assert stream.getvalue().count("\n") == 1


# ---------------------------------------------------------------------------------------------------- the pages


def test_SEC_12_json_over_http_is_inert_and_says_the_same(server: Server, box: todoku.App) -> None:
    box.route("told.**", to=log_destination(HOSTILE))
    message = box.publish("told.once", {"text": HOSTILE}, key=HOSTILE, tx=None)
    client = server.client("admin")
    pages = ("/", "/deliveries", f"/messages/{message.id}")
    for path in (*pages, "/api/messages", "/api/v1/deliveries", f"/api/v1/messages/{message.id}"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert_inert(answer.text)
        if path not in pages:
            assert any(HOSTILE in each for each in texts(answer.json()))


def test_SEC_12_problems_are_inert() -> None:
    encoded = problem_bytes(422, HOSTILE, "id").decode()
    assert_inert(encoded)
    assert json.loads(encoded)["detail"] == HOSTILE
