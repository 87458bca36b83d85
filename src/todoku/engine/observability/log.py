"""Logging: one JSON line per settled attempt, and bound loggers for handlers. Never a payload, nor an error's text.

An event goes through the standard library's logger "todoku", so whoever has logging set up keeps it. A daemon calls
`configure_logging`; then a batch of settled attempts is one write.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO, cast
from uuid import UUID

import msgspec

from todoku.core.control_characters import escape_controls, escape_json
from todoku.core.masking import MASKED, STARS, mask, telling

LOGGER: Final = logging.getLogger("todoku")
LOGGER.addHandler(logging.NullHandler())  # a library says nothing until somebody wants to hear it

Style = Literal["json", "text", "auto"]
Level = Literal["debug", "info", "warning", "error"]
Fields = dict[str, Any]

LEVELS: Final[dict[Level, int]] = {
    "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR,
}  # fmt: skip

_PIPE_BUF: Final = 4096
_WRITTEN: Final = "todoku_written"

_FRAMES: Final = 20
"""So many frames of a traceback are told, from where it was raised outwards."""


class SettledLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The line of a settled attempt: exactly these fields, in this order; null is unknown."""

    event: Literal["settled"]
    ts: datetime
    level: Level
    correlation_id: str | None
    trace_id: str | None
    message_id: str
    outbox_id: int
    topic: str
    adapter: str
    status: Literal["pending", "succeeded", "failed", "aborted"]
    attempts: int
    reason_code: str | None
    error_type: str | None
    idempotency_key_hash: str | None
    latency_ms: float
    worker: UUID


class IngestedLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The line of a request to ingest. `status` is that of its answer; `message_id`: what it was stored as."""

    event: Literal["ingested"]
    ts: datetime
    level: Level
    correlation_id: str
    trace_id: str | None
    message_id: str | None
    topic: str | None
    status: int
    error_type: str | None
    latency_ms: float
    event_id: str | None
    source: str
    duplicate: bool


Lines = Sequence[SettledLine] | Sequence[IngestedLine]

_MASKABLE: Final = (
    "correlation_id", "trace_id", "message_id", "topic", "adapter", "reason_code", "error_type", "idempotency_key_hash",
    "event_id", "source",
)  # fmt: skip


class LogEvent:
    """What happened, as the message of a log record: anybody's formatter shows it as text, ours as JSON."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: Fields) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        return _as_text(self.name, self.fields)


class Log:
    """A logger with fields bound to it; `bind` returns a new one with more of them."""

    __slots__ = ("_fields",)

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def bind(self, **fields: Any) -> Log:
        """The same logger with more fields."""
        return Log(**{**self._fields, **fields})

    def debug(self, event: str, /, **fields: Any) -> None:
        """Something only its author wants to know."""
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        """Something happened as it should."""
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        """Something happened that should not happen often."""
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        """Somebody should look. `exc_info=True` adds the type and the frames of the error being handled."""
        self._emit(logging.ERROR, event, fields)

    def _emit(self, level: int, event: str, fields: Fields) -> None:
        if LOGGER.isEnabledFor(level):
            error = fields.pop("exc_info", None)
            whole = _hidden(_plain({**self._fields, **fields}))
            LOGGER.log(level, LogEvent(event, whole), exc_info=error, stacklevel=3)


# ------------------------------------------------------------------------------------------------ masking

_masked: frozenset[str] = frozenset(MASKED)
_masked_of_line: tuple[str, ...] = ()


def mask_fields(names: Iterable[str]) -> None:
    """From now on, the values of fields with these names in them are stars in every line (setting `mask_fields`)."""
    global _masked, _masked_of_line  # noqa: PLW0603 - logging is process-wide, and so is what it must not tell
    _masked = frozenset(names)
    _masked_of_line = tuple(name for name in _MASKABLE if telling(name, _masked))


def _plain(fields: Fields) -> Fields:
    """Values as JSON has them, so that masking sees into whatever a handler has bound."""
    try:
        return cast("Fields", msgspec.to_builtins(fields, enc_hook=_clean))
    except (TypeError, ValueError, RecursionError):  # odd keys, or a value within itself
        return {name: _clean(value) for name, value in fields.items()}


def _hidden(fields: Fields) -> Fields:
    return cast("Fields", mask(fields, _masked)) if _masked else fields


def _hidden_line(line: Any) -> Any:
    stars = {name: STARS for name in _masked_of_line if getattr(line, name, None) is not None}
    return msgspec.structs.replace(line, **stars)


# --------------------------------------------------------------------------------------------- formatting

_ENCODER: Final = msgspec.json.Encoder()


class JsonFormatter(logging.Formatter):
    """One JSON object a line: event, ts, level, then the event's own fields. Of an error its type and frames only."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        event = record.msg
        name, fields = (event.name, event.fields) if isinstance(event, LogEvent) else (_message(record), {})
        line: Fields = {"event": name, "ts": datetime.fromtimestamp(record.created, UTC), "level": _level(record)}
        if record.name != LOGGER.name:
            line["logger"] = record.name
        line |= {key: value for key, value in fields.items() if key not in line}
        return _encoded(line | _error(record))


class TextFormatter(logging.Formatter):
    """A line for a person at a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        event = record.msg
        text = str(event) if isinstance(event, LogEvent) else escape_controls(_message(record))
        at = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        error = " ".join(f"{name}={value}" for name, value in _error(record).items())
        return f"{at} {_level(record).upper():7} {text}" + (f" {escape_controls(error)}" if error else "")


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):  # somebody's arguments do not fit their format
        return str(record.msg)


def _level(record: logging.LogRecord) -> Level:
    """The nearest of our four."""
    return max(
        (name for name, number in LEVELS.items() if number <= record.levelno),
        key=LEVELS.__getitem__,
        default="debug",
    )


def _error(record: logging.LogRecord) -> Fields:
    """Type and frames of an error. Its text is left out, because it often quotes what was being worked on."""
    if record.exc_info is None or record.exc_info[0] is None:
        return {}
    kind, _, where = record.exc_info
    frames = traceback.extract_tb(where)[-_FRAMES:]
    return {
        "error_type": kind.__name__,
        "frames": [f"{frame.filename}:{frame.lineno}:{frame.name}" for frame in reversed(frames)],
    }


def _encoded(line: Fields) -> str:
    try:
        return escape_json(_ENCODER.encode(line)).decode()
    except (TypeError, ValueError):  # half a surrogate pair
        return escape_json(_ENCODER.encode({_clean(name): _clean(value) for name, value in line.items()})).decode()


def _clean(value: object) -> str:
    try:
        text = value.isoformat() if isinstance(value, datetime) else str(value)
    except Exception:  # noqa: BLE001 - whatever a value does to its own text, the line is written
        text = f"<{type(value).__name__}>"
    return text.encode("utf-8", "replace").decode()


def _as_text(name: str, fields: Fields) -> str:
    shown = "".join(f" {key}={_clean(value)}" for key, value in fields.items() if value is not None)
    return escape_controls(name + shown)


# ------------------------------------------------------------------------------------------------ writing


class LineHandler(logging.StreamHandler[TextIO]):
    """The handler that `configure_logging` sets: writes lines, and many of them at once."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless its line is written already."""
        if not record.__dict__.get(_WRITTEN):
            super().emit(record)

    def write_lines(self, lines: Lines) -> None:
        """Write a batch of lines as JSON, in as few writes as processes that share a pipe can make whole."""
        try:
            pieces = _pieces([escape_json(_ENCODER.encode(line)) for line in lines])
            with self.lock:  # type: ignore[union-attr]
                for piece in pieces:
                    self.stream.write(piece)
                    self.flush()
        except Exception:  # noqa: BLE001 - as in logging itself: a full disk does not stop the line
            self.handleError(LOGGER.makeRecord(LOGGER.name, logging.ERROR, __file__, 0, lines[0].event, (), None))


def _pieces(lines: Sequence[bytes]) -> list[str]:
    """Whole lines in pieces of at most PIPE_BUF: the kernel does not mix such writes of several processes."""
    pieces: list[str] = []
    start = size = 0
    for place, line in enumerate(lines):
        if size + len(line) + 1 > _PIPE_BUF and place > start:
            pieces.append(b"\n".join((*lines[start:place], b"")).decode())
            start, size = place, 0
        size += len(line) + 1
    return [*pieces, b"\n".join((*lines[start:], b"")).decode()]


def configure_logging(
    style: Style = "auto", level: str = "info", *, masked: Iterable[str] = MASKED, stream: TextIO | None = None
) -> None:
    """Send everything that this process logs to `stream` (stderr): as JSON, or as text for a terminal (`auto`).

    Other libraries' records and Python's warnings too, so that every line can be read by the same program.
    """
    stream = stream or sys.stderr
    json = style == "json" or (style == "auto" and not stream.isatty())
    handler = LineHandler(stream)
    handler.setFormatter(JsonFormatter() if json else TextFormatter())
    mask_fields(masked)
    logging.captureWarnings(True)
    root = logging.getLogger()
    for logger in (root, LOGGER):
        for old in [one for one in logger.handlers if isinstance(one, LineHandler)]:
            logger.removeHandler(old)
        logger.addHandler(handler)
    root.setLevel(max(logging.WARNING, _number(level)))
    LOGGER.setLevel(_number(level))
    LOGGER.propagate = False


def _number(level: str) -> int:
    return LEVELS[cast("Level", level.lower())]


def least_level() -> int | None:
    """From which level on lines of a batch are wanted; None: none of them. Asked once for a batch."""
    if not _heard(LOGGER):
        return None
    return next((level for level in (logging.INFO, logging.WARNING, logging.ERROR) if LOGGER.isEnabledFor(level)), None)


def log_lines(lines: Lines) -> None:
    """Log the lines of a batch: a few writes where `configure_logging` was called, a record each for anybody else."""
    if not lines:
        return
    if _masked_of_line:
        lines = [_hidden_line(line) for line in lines]
    ours = [] if LOGGER.filters else [handler for handler in LOGGER.handlers if _writes_json(handler)]
    for handler in ours:
        cast("LineHandler", handler).write_lines(lines)
    if _heard(LOGGER, but=ours):
        for line in lines:
            LOGGER.handle(_record(line, written=bool(ours)))


def _record(line: SettledLine | IngestedLine, *, written: bool) -> logging.LogRecord:
    fields = msgspec.structs.asdict(line)
    at, name, level = fields.pop("ts"), fields.pop("event"), fields.pop("level")
    record = LOGGER.makeRecord(LOGGER.name, LEVELS[level], __file__, 0, LogEvent(name, fields), (), None)
    record.created = at.timestamp()
    record.__dict__[_WRITTEN] = written
    return record


def _writes_json(handler: logging.Handler) -> bool:
    return (
        isinstance(handler, LineHandler)
        and isinstance(handler.formatter, JsonFormatter)
        and not (handler.level or handler.filters)
    )


def _heard(logger: logging.Logger | None, but: Sequence[logging.Handler] = ()) -> bool:
    """Whether anybody (`but` these) has a handler for what is logged here."""
    while logger is not None:
        if any(not isinstance(handler, logging.NullHandler) and handler not in but for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False
