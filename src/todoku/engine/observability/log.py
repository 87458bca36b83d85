"""Logging: one JSON line per settled attempt, and bound loggers for handlers. Never a payload, nor an error's text.

Events go through the standard library's logger "todoku", so an application's logging set-up applies; without one,
Python itself prints warnings and errors. A daemon calls `configure_logging`; then a batch of settled attempts is one
write.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO, cast

import msgspec

from todoku.core.control_characters import escape_controls, escape_json, escape_json_lines
from todoku.core.redaction import MASKED, STARS, is_sensitive, mask
from todoku.engine.observability.log_line import BoundLine, Fields, Level, Line, SettledLine

LOGGER: Final = logging.getLogger("todoku")

Style = Literal["json", "text", "auto"]

LEVELS: Final[dict[Level, int]] = {
    "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR,
}  # fmt: skip

_PIPE_BUF: Final = 4096
"""Bytes of a write to a pipe that the kernel keeps together."""

_FILE_PIECE: Final = 1 << 16
"""The same of a regular file, of which the kernel keeps any write together. Fewer writes are fewer waits for the
interpreter's lock, which each of them gives up."""
_WRITTEN: Final = "todoku_written"
_TRACEBACK: Final = "traceback"

_FRAMES: Final = 20
"""Frames of a traceback that are logged, the innermost first."""

_MASKABLE: Final = (
    "correlation_id", "trace_id", "message_id", "topic", "adapter", "reason_code", "error_type", "idempotency_key_hash",
    "event_id", "source",
)  # fmt: skip


class LogEvent:
    """An event as the message of a log record: other formatters show it as text, todoku's as JSON."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: Fields) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        return _as_text(self.name, self.fields)


class Log:
    """A logger with bound fields; `bind` returns a new one with more fields."""

    __slots__ = ("_fields",)

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def bind(self, **fields: Any) -> Log:
        """Returns a logger with more fields."""
        return Log(**{**self._fields, **fields})

    def debug(self, event: str, /, **fields: Any) -> None:
        """Logs an event for debugging."""
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        """Logs an expected event."""
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        """Logs an event that should be rare."""
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        """Logs an event that needs attention. `exc_info=True` adds type and frames of the error being handled."""
        self._emit(logging.ERROR, event, fields)

    def _emit(self, level: int, event: str, fields: Fields) -> None:
        if LOGGER.isEnabledFor(level):
            error = fields.pop("exc_info", None)
            whole = _mask(to_json_types({**self._fields, **fields}))
            LOGGER.log(level, LogEvent(event, whole), exc_info=error, stacklevel=3, extra=_extra(whole))


# ------------------------------------------------------------------------------------------------ masking

_masked: frozenset[str] = frozenset(MASKED)
_masked_of_line: tuple[str, ...] = ()


def mask_fields(names: Iterable[str]) -> None:
    """Masks fields whose name contains one of these, in every line from now on (setting `mask_fields`)."""
    global _masked, _masked_of_line  # noqa: PLW0603 - logging is process-wide, and so is its masking
    _masked = frozenset(names)
    _masked_of_line = tuple(name for name in _MASKABLE if is_sensitive(name, _masked))


def to_json_types(fields: Fields) -> Fields:
    """Converts values to JSON types, so that masking also reaches into nested values."""
    try:
        return cast("Fields", msgspec.to_builtins(fields, enc_hook=_to_text))
    except (TypeError, ValueError, RecursionError):  # odd keys, or a value within itself
        return {name: _to_text(value) for name, value in fields.items()}


def _mask(fields: Fields) -> Fields:
    return cast("Fields", mask(fields, _masked)) if _masked else fields


def _mask_line(line: Line) -> Line:
    if isinstance(line, BoundLine):
        return BoundLine(cast("SettledLine", _mask_line(line.line)), line.bound)
    stars = {name: STARS for name in _masked_of_line if getattr(line, name, None) is not None}
    return msgspec.structs.replace(line, **stars)


# --------------------------------------------------------------------------------------------- formatting

_ENCODER: Final = msgspec.json.Encoder()


class JsonFormatter(logging.Formatter):
    """Formats one JSON object per line: event, ts, level, the event's fields. Of an error only type and frames."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as one line."""
        event = record.msg
        name, fields = (event.name, event.fields) if isinstance(event, LogEvent) else (_message_of(record), {})
        line: Fields = {"event": name, "ts": datetime.fromtimestamp(record.created, UTC), "level": _level(record)}
        if record.name != LOGGER.name:
            line["logger"] = record.name
        line |= {key: value for key, value in fields.items() if key not in line}
        return _encode(line | _error_fields(record))


class TextFormatter(logging.Formatter):
    """Formats lines for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as one line."""
        event = record.msg
        text = str(event) if isinstance(event, LogEvent) else escape_controls(_message_of(record))
        at = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        error = " ".join(f"{name}={value}" for name, value in _error_fields(record).items())
        return f"{at} {_level(record).upper():7} {text}" + (f" {escape_controls(error)}" if error else "")


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):  # the record's arguments do not fit its format
        return str(record.msg)


def _level(record: logging.LogRecord) -> Level:
    """Returns the highest of the four levels that is not above the record's."""
    return max(
        (name for name, number in LEVELS.items() if number <= record.levelno),
        key=LEVELS.__getitem__,
        default="debug",
    )


def _error_fields(record: logging.LogRecord) -> Fields:
    """Returns type and frames of an error, without its text, which may quote a payload."""
    if record.exc_info is None or record.exc_info[0] is None:
        return {}
    kind, _, where = record.exc_info
    frames = traceback.extract_tb(where)[-_FRAMES:]
    return {
        "error_type": kind.__name__,
        "frames": [f"{frame.filename}:{frame.lineno}:{frame.name}" for frame in reversed(frames)],
    }


def _encode(line: Fields) -> str:
    try:
        return escape_json(_ENCODER.encode(line)).decode()
    except (TypeError, ValueError):  # such as an unpaired surrogate
        return escape_json(_ENCODER.encode({_to_text(name): _to_text(value) for name, value in line.items()})).decode()


def _to_text(value: object) -> str:
    try:
        text = value.isoformat() if isinstance(value, datetime) else str(value)
    except Exception:  # noqa: BLE001 - a failing __str__ must not prevent the line
        text = f"<{type(value).__name__}>"
    return text.encode("utf-8", "replace").decode()


def _as_text(name: str, fields: Fields) -> str:
    """Returns an event as one line; a traceback follows on indented lines."""
    shown = {key: _to_text(value) for key, value in fields.items() if value is not None}
    lines = shown.pop(_TRACEBACK, "").splitlines()
    lines.insert(0, name + "".join(f" {key}={value}" for key, value in shown.items()))
    return "\n    ".join(map(escape_controls, lines))


_OF_RECORDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def _extra(fields: Fields) -> Fields:
    """Returns the fields for a record's `extra`, without those whose names records use themselves."""
    return {name: value for name, value in fields.items() if name not in _OF_RECORDS}


# ------------------------------------------------------------------------------------------------ writing


class LineHandler(logging.StreamHandler[TextIO]):
    """The handler that `configure_logging` installs. It can write many lines at once."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._piece = _FILE_PIECE if _is_regular_file(stream) else _PIPE_BUF

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record, unless its line was written by `write_lines`."""
        if not record.__dict__.get(_WRITTEN):
            super().emit(record)

    def write_lines(self, lines: Sequence[Line]) -> None:
        """Writes a batch of lines as JSON, in as few writes as are atomic if several processes share the stream."""
        try:
            encoded = _encode_lines(lines)
            with self.lock:  # type: ignore[union-attr]
                for piece in _cut(encoded, self._piece):
                    self.stream.write(piece)
                    self.flush()
        except Exception:  # noqa: BLE001 - as in logging itself: a full disk must not stop the worker
            self.handleError(LOGGER.makeRecord(LOGGER.name, logging.ERROR, __file__, 0, "lines not written", (), None))


def _encode_lines(lines: Sequence[Line]) -> bytes:
    if BoundLine in set(map(type, lines)):
        encoded = b"".join(
            [
                b"%b\n" % (_ENCODER.encode(line) if line.__class__ is not BoundLine else _encode_bound(line))
                for line in lines
            ]
        )
    else:
        encoded = _ENCODER.encode_lines(lines)
    return escape_json_lines(encoded)


def _encode_bound(line: BoundLine) -> bytes:
    own, more = _ENCODER.encode(line.line), _bound_fields(line)
    return b"%b,%b" % (own[:-1], _encode(more).encode()[1:]) if more else own


def _bound_fields(line: BoundLine) -> Fields:
    return _mask({name: value for name, value in line.bound.items() if name not in SettledLine.__struct_fields__})


def _is_regular_file(stream: TextIO) -> bool:
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # no file of the system, or closed
        return False


def _cut(lines: bytes, most: int) -> Iterator[str]:
    """Yields whole lines in pieces of at most so many bytes; a longer line is a piece."""
    start = 0
    while len(lines) - start > most:
        end = lines.rfind(b"\n", start, start + most) + 1 or lines.index(b"\n", start) + 1
        yield lines[start:end].decode()
        start = end
    yield lines[start:].decode()


def configure_logging(
    style: Style = "auto", level: str = "info", *, masked: Iterable[str] = MASKED, stream: TextIO | None = None
) -> None:
    """Sends everything that this process logs to `stream` (stderr): as JSON, or with `auto` as text for a terminal.

    This includes other libraries' records and Python's warnings, so that all lines have one format.
    """
    stream = stream or sys.stderr
    handler = LineHandler(stream)
    handler.setFormatter(TextFormatter() if writes_text(style, stream) else JsonFormatter())
    mask_fields(masked)
    logging.captureWarnings(True)
    root = logging.getLogger()
    for logger in (root, LOGGER):
        for old in [one for one in logger.handlers if isinstance(one, LineHandler)]:
            logger.removeHandler(old)
        logger.addHandler(handler)
    root.setLevel(max(logging.WARNING, _level_number(level)))
    LOGGER.setLevel(_level_number(level))
    LOGGER.propagate = False


def writes_text(style: Style, stream: TextIO) -> bool:
    """Whether lines in this style are text: as asked for, or with `auto` on a terminal."""
    return style == "text" or (style == "auto" and stream.isatty())


def _level_number(level: str) -> int:
    return LEVELS[cast("Level", level.lower())]


def lowest_level() -> int | None:
    """Returns the lowest level at which lines are written; None: none is. Called once per batch."""
    if not LOGGER.hasHandlers():  # then Python itself prints what is worth a warning
        last = logging.lastResort
        return None if last is None or not LOGGER.isEnabledFor(logging.ERROR) else max(last.level, LOGGER.level)
    if not _has_handler(LOGGER):
        return None
    return next((level for level in (logging.INFO, logging.WARNING, logging.ERROR) if LOGGER.isEnabledFor(level)), None)


def log_lines(lines: Sequence[Line]) -> None:
    """Logs the lines of a batch: in few writes to todoku's own handlers, as one record each to all others."""
    if not lines:
        return
    if _masked_of_line:
        lines = [_mask_line(line) for line in lines]
    ours = [] if LOGGER.filters else [handler for handler in LOGGER.handlers if _writes_json(handler)]
    for handler in ours:
        cast("LineHandler", handler).write_lines(lines)
    if not ours or _has_handler(LOGGER, but=ours):
        for line in lines:
            LOGGER.handle(_record(line, written=bool(ours)))


def _record(line: Line, *, written: bool) -> logging.LogRecord:
    own = line.line if isinstance(line, BoundLine) else line
    fields = msgspec.structs.asdict(own) | (_bound_fields(line) if isinstance(line, BoundLine) else {})
    at, name, level = fields.pop("ts"), fields.pop("event"), fields.pop("level")
    record = LOGGER.makeRecord(LOGGER.name, LEVELS[level], __file__, 0, LogEvent(name, fields), (), None)
    record.created = at.timestamp()
    record.__dict__ |= _extra(fields) | {_WRITTEN: written}
    return record


def _writes_json(handler: logging.Handler) -> bool:
    return (
        isinstance(handler, LineHandler)
        and isinstance(handler.formatter, JsonFormatter)
        and not (handler.level or handler.filters)
    )


def _has_handler(logger: logging.Logger | None, but: Sequence[logging.Handler] = ()) -> bool:
    """Whether the logger has a handler, other than NullHandler and `but`."""
    while logger is not None:
        if any(not isinstance(handler, logging.NullHandler) and handler not in but for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False
