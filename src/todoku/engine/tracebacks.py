"""The tracebacks of failed attempts: formatted in the process that raised them, without local variables.

Frames of the user's own code are always kept. Frames of libraries are counted, or kept, too, with the setting `full`.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Literal

import msgspec

from todoku.core.outcome import Traceback, storable, without_url_secrets

Which = Literal["off", "user", "full"]

TEXT_BYTES: Final = 16 << 10
"""The most bytes of a traceback that are stored."""

LOGGED_BYTES: Final = 3 << 10
"""The most bytes of it that are logged: lines of up to 4 KiB are written to a pipe in one piece."""

_MESSAGE_LENGTH: Final = 2048
_ERRORS: Final = 10
"""The most exceptions of a chain, and of a group, that are shown."""

_FINGERPRINT_LENGTH: Final = 16
_CAUSE: Final = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT: Final = "\nDuring handling of the above exception, another exception occurred:\n\n"
_TRACEBACK: Final = "Traceback (most recent call last):\n"
_STOPPED: Final = "Stack of the handler when it was stopped (most recent call last):\n"
_RUNNING: Final = "Stack of the handler (most recent call last):\n"


class RaisedInProcess(Exception):
    """Stands for an exception that was raised in a handler's process, which formatted its traceback."""

    traceback: Traceback | None = None


def raised_in_process(name: str, trace: Traceback | None) -> Exception:
    """Creates the stand-in for an exception whose type is called `name`."""
    error: RaisedInProcess = type(name, (RaisedInProcess,), {"traceback": trace})()
    return error


class _Part(msgspec.Struct, frozen=True):
    """Lines of a traceback. `message`: the text of an exception, which stands at the end of the lines."""

    lines: str
    message: str = ""


class _Stack(msgspec.Struct, frozen=True):
    """The frames of an exception: their lines with all frames and with the user's, and the functions they are in."""

    full: str
    users: str
    functions: tuple[str, ...]
    is_ours: bool
    """Every frame is todoku's own: a payload that does not decode, for example."""


def format_error(error: BaseException, package: str, which: Which) -> Traceback | None:
    """Returns the traceback of an exception with its causes; None: none is kept.

    `package` is the top-level package of the handler, which is user code wherever it is installed.
    """
    if isinstance(error, RaisedInProcess):
        return error.traceback
    if which == "off":
        return None
    chain = [(one, _stack(one.__traceback__, package)) for one in _chain(error)]
    if all(stack.is_ours for _, stack in chain):
        return None
    names = [name for one, stack in chain for name in (_type_name(one), *stack.functions)]
    whole = [list(_parts(chain, full=True, package=package))] if which == "full" else []
    return _fit([*whole, list(_parts(chain, full=False, package=package))], names)


def format_stack(where: FrameType | TracebackType | None, package: str, which: Which) -> Traceback | None:
    """Returns the stack of a handler that was stopped; None: none is kept."""
    if which == "off" or where is None:
        return None
    return _fit_stack(_stack(where, package), which)


def format_frames(frames: Sequence[FrameType], package: str, which: Which) -> Traceback | None:
    """Returns the stack of a handler that runs, the outermost frame first; None: none is kept."""
    if which == "off" or not frames:
        return None
    summary = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames)
    return _fit_stack(_of_frames(frames, summary, package), which, _RUNNING)


_DUMPED: Final = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')


def format_dump(dump: str, package: str, which: Which, *, runs: bool = False) -> Traceback | None:
    """Returns the stack that faulthandler wrote, the innermost frame first; None: it has no frames.

    `runs`: the handler goes on; otherwise it is stopped.
    """
    found = [_DUMPED.fullmatch(line) for line in dump.splitlines()]
    frames = [(match["file"], int(match["line"]), match["function"]) for match in found if match][::-1]
    if not frames:
        return None
    summary = traceback.StackSummary.from_list([traceback.FrameSummary(*frame) for frame in frames])
    modules = [_module_of(file) for file, _, _ in frames]
    stack = _arrange(summary, modules, [f"{m}:{frame[2]}" for m, frame in zip(modules, frames, strict=True)], package)
    return _fit_stack(stack, which, _RUNNING if runs else _STOPPED)


def _module_of(file: str) -> str:
    """The top-level package of an installed file, or the name of another file."""
    path = file.replace("\\", "/")
    if _is_ours(path):
        return "todoku"
    for part in (*_LIBRARIES, *_STANDARD):
        if part in path:
            return path.rpartition(part)[2].partition("/")[0].removesuffix(".py")
    return Path(path).stem


def _fit_stack(stack: _Stack, which: Which, head: str = _STOPPED) -> Traceback:
    lines = [stack.full, stack.users] if which == "full" else [stack.users]
    return _fit([[_Part(head + some)] for some in lines], ["stopped", *stack.functions])


def _fit(candidates: Sequence[Sequence[_Part]], names: Sequence[str]) -> Traceback:
    """Takes the first candidate that is small enough; of the last, cuts lines out of the middle."""
    text = ""
    for parts in candidates:
        text = storable("".join(part.lines + part.message for part in parts))
        if len(text.encode()) <= TEXT_BYTES:
            break
    frames = storable("".join(part.lines + ("\n" if part.message else "") for part in parts))
    distinct = [name for name, _ in groupby(names)]  # a recursion is one function, however deep
    fingerprint = hashlib.sha256("\n".join(distinct).encode("utf-8", "replace")).hexdigest()[:_FINGERPRINT_LENGTH]
    return Traceback(_cut(text, TEXT_BYTES), _cut(frames, LOGGED_BYTES), fingerprint)


def _cut(text: str, most: int) -> str:
    """Cuts whole lines out of the middle: both the first and the last frames are of use."""
    raw, half = text.encode(), most // 2 - 16
    if len(raw) <= most:
        return text
    first, last = raw[:half].decode("utf-8", "ignore"), raw[-half:].decode("utf-8", "ignore")
    return f"{first.rpartition(chr(10))[0]}\n  …\n{last.partition(chr(10))[2] or last}"


# ------------------------------------------------------------
# Exceptions


def _chain(error: BaseException) -> list[BaseException]:
    """The exception and what led to it, the first one first, as Python prints them; each once."""
    chain: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and len(chain) < _ERRORS and all(found is not one for one in chain):
        chain.insert(0, found)
        found = _origin(found)
    return chain


def _origin(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _parts(
    chain: Sequence[tuple[BaseException, _Stack]], *, full: bool, package: str, indent: str = ""
) -> Iterator[_Part]:
    for place, (error, stack) in enumerate(chain):
        link = "" if place == 0 else _CAUSE if error.__cause__ is not None else _CONTEXT
        lines = stack.full if full else stack.users
        head = link + (_TRACEBACK + lines if lines else "")
        yield _Part(_indented(head + _type_name(error), indent), _message(error))
        if isinstance(error, BaseExceptionGroup):
            for number, member in enumerate(error.exceptions[:_ERRORS], 1):
                yield _Part(f"{indent}  {number} of {len(error.exceptions)} in the group:\n")
                members = [(one, _stack(one.__traceback__, package)) for one in _chain(member)]
                yield from _parts(members, full=full, package=package, indent=indent + "    ")


def _indented(text: str, indent: str) -> str:
    return "".join(indent + line if line.strip() else line for line in text.splitlines(keepends=True))


def _type_name(error: BaseException) -> str:
    kind = type(error)
    is_plain = kind.__module__ in ("builtins", "__main__")
    return kind.__qualname__ if is_plain else f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    """The text of an exception as it follows its type, with its notes, and without secrets in URLs."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an exception with a broken __str__ has a traceback, too
        text = "(its text cannot be read)"
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    whole = "\n".join([f": {text}" if text else "", *notes])
    clean = without_url_secrets(whole[:_MESSAGE_LENGTH])
    return clean + ("…\n" if len(whole) > _MESSAGE_LENGTH else "\n")


# ------------------------------------------------------------
# Frames


def _stack(where: FrameType | TracebackType | None, package: str) -> _Stack:
    """Formats the frames of a traceback, or of a running thread, the outermost first."""
    if isinstance(where, FrameType):
        frames = [frame for frame, _ in traceback.walk_stack(where)][::-1]
        summary = traceback.extract_stack(where)
    else:
        frames = [frame for frame, _ in traceback.walk_tb(where)]
        summary = traceback.extract_tb(where)
    return _of_frames(frames, summary, package)


def _of_frames(frames: Sequence[FrameType], summary: traceback.StackSummary, package: str) -> _Stack:
    modules = [str(frame.f_globals.get("__name__", "")) for frame in frames]
    functions = [f"{module}:{frame.f_code.co_qualname}" for frame, module in zip(frames, modules, strict=True)]
    return _arrange(summary, modules, functions, package)


def _arrange(summary: traceback.StackSummary, modules: Sequence[str], functions: Sequence[str], package: str) -> _Stack:
    is_ours = bool(summary) and all(_is_ours(frame.filename.replace("\\", "/")) for frame in summary)
    users = [
        is_user_code(frame.filename, module.partition(".")[0], package)
        for frame, module in zip(summary, modules, strict=True)
    ]
    first = users.index(True) if True in users else 0  # before it is what called the handler
    modules, functions, users = modules[first:], functions[first:], users[first:]
    summary = traceback.StackSummary.from_list(summary[first:])
    kept = [name for name, own in zip(functions, users, strict=True) if own] or functions[-3:]
    return _Stack("".join(summary.format()), _user_lines(summary, modules, users), tuple(kept), is_ours)


def _user_lines(summary: traceback.StackSummary, modules: Sequence[str], users: Sequence[bool]) -> str:
    """The lines of the user's frames and of the last frame; the others between them are counted."""
    lines: list[str] = []
    places = list(range(len(users)))
    for own, group in groupby(places, lambda place: users[place] or place == places[-1]):
        run = list(group)
        if own:
            lines += traceback.StackSummary.from_list([summary[place] for place in run]).format()
        else:
            packages = dict.fromkeys(modules[place].partition(".")[0] for place in run)
            lines.append(f"  … {len(run)} frame{'s' * (len(run) > 1)} of {', '.join(packages)}\n")
    return "".join(lines)


_PATHS: Final = sysconfig.get_paths()
_LIBRARIES: Final = ("/site-packages/", "/dist-packages/")
_STANDARD: Final = tuple({f"{Path(_PATHS[name]).as_posix()}/" for name in ("stdlib", "platstdlib")})
_OURS: Final = f"{Path(__file__).parents[1].as_posix()}/"
_DEMO: Final = f"{_OURS}daemon/demo_shop.py"
"""The demonstration stands for a user's code."""


def _is_ours(path: str) -> bool:
    return path.startswith(_OURS) and path != _DEMO


@lru_cache(maxsize=1024)
def is_user_code(file: str, package: str, handler_package: str) -> bool:
    """Whether a file is the user's: not todoku's, a library's or Python's. `package` is the file's top-level one."""
    path = file.replace("\\", "/")
    if _is_ours(path) or path.startswith(("<frozen ", "<string>")):
        return False
    if path == _DEMO:
        return True
    if any(part in path for part in _LIBRARIES):
        return package == handler_package
    return not path.startswith(_STANDARD)
