"""One line per settled attempt, with exactly the fields of DESIGN §8; never a payload, masked by setting."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.core.making import WORKER, claimed
from tests.support.world import aborted, failed, snoozed
from todoku.core.decision import SUCCEEDED, Settlement
from todoku.core.redaction import MASKED
from todoku.engine.observability.log import (
    LOGGER,
    JsonFormatter,
    LineHandler,
    Log,
    configure_logging,
    lowest_level,
    mask_fields,
)
from todoku.engine.observability.log_line import SettledLine
from todoku.engine.observability.telemetry import EndedAttempt, Telemetry

FIELDS = (
    "event", "ts", "level", "correlation_id", "trace_id", "message_id", "outbox_id", "topic", "adapter", "status",
    "attempts", "reason_code", "error_type", "idempotency_key_hash", "latency_ms", "worker",
)  # fmt: skip
TRACE = "0af7651916cd43dd8448eb211c80319c"
CANARY = "canary-4111-1111"


class Terminal(io.StringIO):
    """A stream that remembers each write."""

    def __init__(self, descriptor: int | None = None, *, tty: bool = False) -> None:
        super().__init__()
        self.descriptor = descriptor
        """That of the system's file or pipe which it stands for."""
        self.tty = tty
        self.writes: list[str] = []

    def isatty(self) -> bool:
        return self.tty

    def fileno(self) -> int:
        return super().fileno() if self.descriptor is None else self.descriptor

    def write(self, text: str) -> int:
        self.writes.append(text)
        return super().write(text)

    def lines(self) -> list[str]:
        return self.getvalue().split("\n")[:-1]


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level, LOGGER.handlers[:], LOGGER.level, LOGGER.propagate
    yield
    logging.captureWarnings(False)
    root.handlers[:], root.level, LOGGER.handlers[:], LOGGER.level, LOGGER.propagate = before
    mask_fields(MASKED)


@pytest.fixture
def out() -> Terminal:
    stream = Terminal()
    configure_logging("json", "info", stream=stream)
    return stream


def ended(settlement: Settlement = SUCCEEDED, error_type: str | None = None, **changes: object) -> EndedAttempt:
    return EndedAttempt(claimed(**changes), settlement, 10.0, 10.0425, error_type)


def settle(*batch: EndedAttempt) -> None:
    Telemetry().settled(batch, seconds=0.001)


def parsed(line: str) -> dict[str, Any]:
    return msgspec.json.decode(line)  # type: ignore[no-any-return]


# -------------------------------------------------------------------------------------- the settled line


def test_a_settled_attempt_is_one_line_with_exactly_the_fields_of_the_design_in_that_order(out: Terminal) -> None:
    before = datetime.now(UTC)
    headers = f'{{"X-Correlation-Id": "c-7", "traceparent": "00-{TRACE}-b7ad6b7169203331-01"}}'
    settle(ended(aborted("REFUSED"), "ValueError", id=9, attempt=3, key_hash="ab" * 32, headers=headers))
    (line,) = out.lines()
    assert tuple(parsed(line)) == FIELDS == SettledLine.__struct_fields__
    told = msgspec.json.decode(line, type=SettledLine)
    assert before <= told.ts <= datetime.now(UTC)
    assert told == SettledLine(
        event="settled",
        ts=told.ts,
        level="error",
        correlation_id="c-7",
        trace_id=TRACE,
        message_id="m",
        outbox_id=9,
        topic="order.created",
        adapter="warehouse",
        status="aborted",
        attempts=3,
        reason_code="REFUSED",
        error_type="ValueError",
        idempotency_key_hash="ab" * 32,
        latency_ms=42.5,
        worker=WORKER,
    )


def test_what_is_unknown_is_null_and_not_left_out(out: Terminal) -> None:
    settle(ended())
    line = parsed(out.lines()[0])
    nulls = {"correlation_id", "trace_id", "reason_code", "error_type", "idempotency_key_hash"}
    assert tuple(line) == FIELDS
    assert {name for name, value in line.items() if value is None} == nulls


@pytest.mark.parametrize(
    ("headers", "correlation", "trace"),
    [
        ('{"correlation_id": "a"}', "a", None),
        ('{"x-correlation-id": "a", "correlation_id": "b"}', "a", None),
        ('{"TraceParent": "00-' + TRACE + '-b7ad6b7169203331-00"}', None, TRACE),
        ('{"traceparent": "somebody\'s own"}', None, None),
        ('{"x-correlation-id": "' + "a" * 1000 + '"}', "a" * 128, None),
        ("[1]", None, None),
        ('{"x-correlation-id": 7}', None, None),
    ],
)
def test_correlation_and_trace_come_from_the_headers(
    out: Terminal, headers: str, correlation: str | None, trace: str | None
) -> None:
    settle(ended(headers=headers))
    line = msgspec.json.decode(out.lines()[0], type=SettledLine)
    assert (line.correlation_id, line.trace_id) == (correlation, trace)


def test_the_level_says_whether_somebody_should_look(out: Terminal) -> None:
    settle(ended(), ended(snoozed()), ended(failed()), ended(aborted()))
    lines = [msgspec.json.decode(line, type=SettledLine) for line in out.lines()]
    assert [(line.level, line.status) for line in lines] == [
        ("info", "succeeded"),
        ("info", "pending"),
        ("warning", "failed"),
        ("error", "aborted"),
    ]


@pytest.mark.parametrize(("level", "told"), [("info", 3), ("warning", 2), ("error", 1)])
def test_a_level_keeps_the_lines_below_it_away(level: str, told: int) -> None:
    stream = Terminal()
    configure_logging("json", level, stream=stream)
    settle(ended(), ended(failed()), ended(aborted()))
    assert len(stream.lines()) == told


@pytest.mark.parametrize(("goes_to", "largest"), [("pipe", 4096), ("file", 1 << 16)])
def test_a_batch_is_written_in_whole_lines_that_processes_do_not_mix(
    goes_to: str, largest: int, tmp_path: Path
) -> None:
    """Writes of up to PIPE_BUF to a pipe are whole, and all writes to a file: it has few of them."""
    reading, writing = os.pipe() if goes_to == "pipe" else (os.open(tmp_path / "log", os.O_CREAT), 0)
    out = Terminal(writing or reading)
    configure_logging("json", stream=out)
    settle(*(ended(id=number) for number in range(500)))
    assert [parsed(line)["outbox_id"] for line in out.lines()] == list(range(500))
    assert all(write.endswith("}\n") and len(write) <= largest for write in out.writes)
    assert len(out.writes) < 300_000 // largest
    for each in filter(None, (reading, writing)):
        os.close(each)


def test_a_line_that_is_longer_than_a_write_may_be_is_a_write_of_its_own(out: Terminal) -> None:
    """It cannot be kept whole on a shared pipe, but its neighbours can."""
    settle(ended(id=1), ended(id=2, topic="t" * 9000), ended(id=3))
    assert [parsed(line)["outbox_id"] for line in out.lines()] == [1, 2, 3]
    assert [len(write) > 4096 for write in out.writes] == [False, True, False]


def test_one_line_of_a_batch_with_control_characters_leaves_the_others_as_they_are(out: Terminal) -> None:
    """SEC-12: they are escaped in their line, and the ends of the lines are not."""
    settle(ended(id=1), ended(id=2, topic="left\u202eright\x7f"), ended(id=3))
    assert [parsed(line)["topic"] for line in out.lines()][1] == "left\u202eright\x7f"
    assert len(out.lines()) == 3
    assert r"left\u202eright\u007f" in out.getvalue()


def test_whoever_has_logging_set_up_gets_a_record_per_attempt(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "todoku")
    settle(ended(), ended(aborted("REFUSED"), id=2))
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR"]
    assert "settled" in caplog.text
    assert "outbox_id=2" in caplog.text
    assert "reason_code=REFUSED" in caplog.text


def test_the_text_of_a_terminal_says_the_same() -> None:
    stream = Terminal(tty=True)
    configure_logging("auto", "info", stream=stream)
    settle(ended(failed("TIMEOUT")))
    (line,) = stream.lines()
    assert " WARNING settled " in line
    assert "status=failed attempts=1 reason_code=TIMEOUT" in line


def test_a_full_disk_does_not_stop_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    stream = Terminal()
    configure_logging("json", "info", stream=stream)
    stream.close()
    settle(ended())
    assert "ValueError" in capsys.readouterr().err  # as logging itself reports it


# --------------------------------------------------------------------------------------- never a payload


@pytest.mark.parametrize("style", ["json", "text"])
def test_no_line_has_a_payload_a_key_a_header_or_the_text_of_an_error(style: Any) -> None:
    stream = Terminal()
    configure_logging(style, "debug", stream=stream)
    secret = {"payload": f'{{"card": "{CANARY}"}}', "payload_bytes": CANARY.encode(), "key": CANARY}
    secret |= {"headers": f'{{"authorization": "{CANARY}", "x-correlation-id": "c"}}'}
    settlement = Settlement(status=aborted().status, reason="REFUSED", error=f"bad card {CANARY}", result=CANARY)
    telemetry = Telemetry()
    telemetry.claimed([claimed(**secret)], seconds=0.001)
    telemetry.settled([ended(settlement, "ValueError", **secret)], seconds=0.001)
    telemetry.lost([claimed(**secret)])
    assert len(stream.lines()) == 2
    assert CANARY not in stream.getvalue()


def test_an_error_is_told_by_its_type_and_its_frames_because_its_text_may_quote_a_payload(out: Terminal) -> None:
    try:
        raise ValueError(f"cannot use {CANARY}")
    except ValueError:
        Log().error("HANDLER_FAILED", exc_info=True)
        logging.getLogger("somebody.else").exception("it broke")
    ours, theirs = map(parsed, out.lines())
    for line in (ours, theirs):
        assert line["error_type"] == "ValueError"
        assert "test_log.py" in line["frames"][0]
    assert CANARY not in out.getvalue()


# ------------------------------------------------------------------------------------------------ masking


def test_telling_fields_are_stars_at_every_depth(out: Terminal) -> None:
    @dataclass
    class Person:
        name: str
        email: str

    Log(api_key=CANARY).bind(person=Person("Ann", CANARY)).info("paid", cards=[{"cardNumber": CANARY, "n": 1}], n=2)
    line = parsed(out.lines()[0])
    assert line["person"] == {"name": "Ann", "email": "***"}
    assert (line["api_key"], line["cards"], line["n"]) == ("***", "***", 2)
    assert CANARY not in out.getvalue()


def test_the_setting_masks_fields_of_the_settled_line_too() -> None:
    stream = Terminal()
    configure_logging("json", "info", masked=("topic", "correlation_id"), stream=stream)
    settle(ended(headers='{"x-correlation-id": "c"}'), ended())
    first, second = (msgspec.json.decode(line, type=SettledLine) for line in stream.lines())
    assert (first.topic, first.correlation_id, first.adapter) == ("***", "***", "warehouse")
    assert (second.topic, second.correlation_id) == ("***", None)


# ---------------------------------------------------------------------------------------- handlers' lines


def test_a_handlers_line_is_json_with_what_it_has_bound(out: Terminal) -> None:
    log = Log(message_id="m", topic="payment")
    bound = log.bind(event_id="e-1", participant_id="p-9")
    bound.info("payment", status="paid")
    log.warning("other")
    first, second = map(parsed, out.lines())
    assert list(first) == ["event", "ts", "level", "message_id", "topic", "event_id", "participant_id", "status"]
    assert (first["event"], first["level"], first["participant_id"]) == ("payment", "info", "p-9")
    assert "participant_id" not in second  # `bind` made a new one


def test_a_handler_cannot_break_its_line(out: Terminal) -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError

    circle: list[object] = []
    circle.append(circle)
    log = Log(ts="mine", level="mine", at=datetime(2026, 1, 2, tzinfo=UTC), id=UUID(int=1), price=Decimal("1.10"))
    log.info("plain", number=float("nan"), keys={(1, 2): "x"}, raw=b"\0", names={"b"})
    log.info("odd", odd=Odd(), circle=circle, half="\ud800", text="a\nb\u2028")
    plain, odd = map(parsed, out.lines())
    assert (plain["event"], plain["level"], plain["price"]) == ("plain", "info", "1.10")
    assert plain["ts"] != "mine"
    assert odd["text"] == "a\nb\u2028"
    assert odd["odd"] == "<Odd>"


def test_nobody_forges_a_line_at_a_terminal() -> None:
    stream = Terminal()
    configure_logging("text", "info", stream=stream)
    Log().info("greeting", name="eve\n12:00:00 ERROR all is lost \x1b[2J")
    (line,) = stream.lines()
    assert r"eve\n12:00:00 ERROR all is lost \x1b[2J" in line


def test_what_other_libraries_log_is_json_too(out: Terminal) -> None:
    logging.getLogger("uvicorn.error").error("port %s is busy", 80)
    assert logging.getLogger("uvicorn.error").isEnabledFor(logging.INFO) is False  # only ours is this talkative
    line = parsed(out.lines()[0])
    assert (line["event"], line["logger"], line["level"]) == ("port 80 is busy", "uvicorn.error", "error")


def test_a_record_whose_arguments_do_not_fit_is_still_a_line() -> None:
    record = logging.makeLogRecord({"msg": "port %s %s", "args": (80,), "levelno": 25})
    assert {"event": "port %s %s", "level": "info"}.items() <= parsed(JsonFormatter().format(record)).items()


def test_configuring_again_does_not_write_twice(out: Terminal) -> None:
    again = Terminal()
    configure_logging("json", "info", stream=again)
    Log().info("once")
    logging.getLogger("other").error("once")
    assert out.lines() == []
    assert len(again.lines()) == 2


def test_warnings_are_printed_by_python_unless_somebody_wants_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NullHandler asks for silence: then a line is not even made. Without any handler, warnings are seen."""
    monkeypatch.setattr(LOGGER, "propagate", False)  # pytest listens, at the root and here
    monkeypatch.setattr(LOGGER, "handlers", [logging.NullHandler()])
    monkeypatch.setattr(LOGGER, "level", logging.DEBUG)
    assert lowest_level() is None
    LOGGER.handlers.clear()
    assert lowest_level() == logging.WARNING
    LOGGER.addHandler(LineHandler(Terminal()))
    assert lowest_level() == logging.INFO
