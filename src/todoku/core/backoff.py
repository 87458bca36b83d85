"""Back-off policies: how long to wait before the next attempt. A table, a linear or a capped exponential function.

The caller draws `jitter` in [0, 1); it adds up to 10 % to the wait and never shortens it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Final, assert_never

import msgspec

from todoku.core.errors import InvalidMessage, InvalidSetting

# ------------------------------------------------------------
# The expression of `Upstash-Retry-Delay`: the milliseconds that a request waits before it is retried.
#
# Example: `min(86400000, 1000 * pow(2, retried))`.
#
# It has numbers, `+ - * / ( )`, the variable `retried` (0 before the first retry) and a few functions. It is not
# evaluated as Python: it is parsed into steps of a stack machine, with limits on its length and depth.

LONGEST_MS: Final = 86_400_000.0
"""No delay is longer than a day. A value that overflows or is undefined (0/0) counts as a day, too."""

MAX_LENGTH: Final = 500
MAX_DEPTH: Final = 32
MAX_NUMBER: Final = 1e15
_FIELD: Final = "Upstash-Retry-Delay"
_GRAMMAR: Final = "numbers, + - * / ( ), retried, pow sqrt abs exp floor ceil round min max: 1000 * pow(2, retried)"
_TOKEN: Final = re.compile(r"[ \t]*(?:([0-9]+(?:\.[0-9]*)?|\.[0-9]+)|([A-Za-z_]+)|([-+*/(),]))", re.ASCII)
_SPACE: Final = " \t"
_NEGATE: Final = "negate"


class Apply(msgspec.Struct, frozen=True):
    """Takes `arguments` values from the stack and pushes the result of the function."""

    function: str
    arguments: int


Step = float | str | Apply
"""A number to push, the name of the variable, or a function to apply."""


class Expression(msgspec.Struct, frozen=True):
    """A parsed expression: its text, and its steps in the order of evaluation. Create it with `parse`."""

    text: str
    steps: tuple[Step, ...]


def parse(text: str) -> Expression:
    """Parses an expression; raises InvalidMessage, which names Upstash-Retry-Delay and the part that is wrong."""
    if len(text) > MAX_LENGTH:
        raise InvalidMessage(f"{_FIELD} has {len(text)} characters", hint=f"{MAX_LENGTH} are allowed")
    parser = _Parser(text)
    parser.sum(0)
    parser.end()
    return Expression(text, tuple(parser.steps))


def evaluate(expression: Expression, retried: int) -> float:
    """Returns the milliseconds to wait after `retried` retries, 0 to LONGEST_MS. It never raises."""
    stack: list[float] = []
    for step in expression.steps:
        if isinstance(step, Apply):
            values = stack[-step.arguments :]
            del stack[-step.arguments :]
            stack.append(_apply(step.function, values))
        else:
            stack.append(float(retried) if isinstance(step, str) else step)
    found = stack[-1]
    return LONGEST_MS if math.isnan(found) else min(max(found, 0.0), LONGEST_MS)


# ------------------------------------------------------------------------------------------------ parsing


class _Parser:
    """A recursive-descent parser: a sum of products of factors. Each appends its steps after those of its operands."""

    def __init__(self, text: str) -> None:
        self.steps: list[Step] = []
        self._text = text
        self._tokens = list(_tokens(text))
        self._at = 0

    def sum(self, depth: int) -> None:
        self._chain("+-", self._product, depth)

    def _product(self, depth: int) -> None:
        self._chain("*/", self._factor, depth)

    def _chain(self, operators: str, part: Callable[[int], None], depth: int) -> None:
        part(depth)
        while self._next() != "" and self._next() in operators:
            operator = self._take()
            part(depth)
            self.steps.append(Apply(operator, 2))

    def _factor(self, depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise InvalidMessage(f"{_FIELD} is nested too deep", hint=f"{MAX_DEPTH} levels are allowed")
        match self._take():
            case "+":
                self._factor(depth + 1)
            case "-":
                self._factor(depth + 1)
                self.steps.append(Apply(_NEGATE, 1))
            case "(":
                self.sum(depth + 1)
                self._expect(")")
            case "retried" as variable:
                self.steps.append(variable)
            case function if function in _ARGUMENTS:
                self._call(function, depth)
            case number:
                self._number(number)

    def _call(self, function: str, depth: int) -> None:
        self._expect("(")
        self.sum(depth + 1)
        number = 1
        while self._next() == ",":
            self._take()
            self.sum(depth + 1)
            number += 1
        self._expect(")")
        expected = _ARGUMENTS[function]
        if number != (expected or number):
            raise self._invalid(f"{function} takes {expected}, not {number}")
        self.steps.append(Apply(function, number))

    def _number(self, token: str) -> None:
        if token == "" or token[0] not in ".0123456789":
            raise self._invalid(f"{token!r} is not known" if token else "it is incomplete")
        value = float(token)
        if value > MAX_NUMBER:
            raise self._invalid(f"{token} is too large a number")
        self.steps.append(value)

    def end(self) -> None:
        if token := self._next():
            raise self._invalid(f"{token!r} is not expected there")

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise self._invalid(f"{token!r} is missing" + (f" before {self._next()!r}" if self._next() else ""))
        self._take()

    def _next(self) -> str:
        """Returns the next token; "" at the end."""
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._next()
        self._at += 1
        return token

    def _invalid(self, what: str) -> InvalidMessage:
        return _invalid(self._text, what)


def _tokens(text: str) -> Iterator[str]:
    at, end = 0, len(text.rstrip(_SPACE))
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            raise _invalid(text, f"{text[at:].lstrip(_SPACE)[0]!r} is not known")
        yield found[found.lastindex or 0]
        at = found.end()


def _invalid(text: str, what: str) -> InvalidMessage:
    return InvalidMessage(f"{_FIELD} cannot be {text!r}: {what}", hint=_GRAMMAR)


# ------------------------------------------------------------------------------------------------ evaluating

_ARGUMENTS: Final = {
    "pow": 2, "sqrt": 1, "abs": 1, "exp": 1, "floor": 1, "ceil": 1, "round": 1, "min": None, "max": None,
}  # fmt: skip
"""The number of arguments of each function; None: one or more."""


def _apply(function: str, values: list[float]) -> float:
    """Computes as IEEE 754 does: overflow is infinity, which min(…) can still cap, and an undefined result is NaN."""
    try:
        return _FUNCTIONS[function](values)
    except OverflowError:
        return math.inf
    except ValueError:  # sqrt(-1), pow(-1, 0.5)
        return math.nan


def _divide(values: list[float]) -> float:
    dividend, divisor = values
    if divisor == 0:
        return math.nan if dividend == 0 or math.isnan(dividend) else math.copysign(math.inf, dividend)
    return dividend / divisor


def _power(values: list[float]) -> float:
    number, exponent = values
    if number == 0 and exponent < 0:
        return math.inf
    try:
        return math.pow(number, exponent)
    except OverflowError:
        return -math.inf if number < 0 and math.fmod(exponent, 2) else math.inf


def _to_integer(rounding: Callable[[float], int], value: float) -> float:
    return float(rounding(value)) if math.isfinite(value) else value


def _round_half_away(value: float) -> int:
    """Rounds halves away from zero, unlike `round`."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def _choose(choose: Callable[[list[float]], float], values: list[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else choose(values)


_FUNCTIONS: Final[dict[str, Callable[[list[float]], float]]] = {
    "+": lambda values: values[0] + values[1],
    "-": lambda values: values[0] - values[1],
    "*": lambda values: values[0] * values[1],
    "/": _divide,
    _NEGATE: lambda values: -values[0],
    "pow": _power,
    "sqrt": lambda values: math.sqrt(values[0]),
    "abs": lambda values: abs(values[0]),
    "exp": lambda values: math.exp(values[0]),
    "floor": lambda values: _to_integer(math.floor, values[0]),
    "ceil": lambda values: _to_integer(math.ceil, values[0]),
    "round": lambda values: _to_integer(_round_half_away, values[0]),
    "min": lambda values: _choose(min, values),
    "max": lambda values: _choose(max, values),
}

DEFAULT_DELAY: Final = parse("min(86400000, 1000 * exp(2.5 * (retried + 1)))")
"""The default of QStash: 12 s, 2 min 28 s, 30 min, 6 h, then a day."""


JITTER_SHARE: Final = 0.1
LONGEST: Final = 30 * 86_400.0
"""Upper bound of every policy, in seconds."""


class BackoffTable(msgspec.Struct, frozen=True, tag=True):
    """The n-th failure waits for the n-th entry; the last entry repeats."""

    delays: tuple[float, ...]


class Linear(msgspec.Struct, frozen=True, tag=True):
    """The n-th failure waits n times the step."""

    step: float


class Exponential(msgspec.Struct, frozen=True, tag=True):
    """The n-th failure waits base × factor^(n-1), at most cap."""

    base: float
    factor: float
    cap: float


Backoff = BackoffTable | Linear | Exponential


def table(*delays: float) -> BackoffTable:
    """Wait `delays` seconds in turn: `table(5, 10, 20)`."""
    if not delays:
        raise InvalidSetting("a back-off table needs at least one delay", hint="for example table(5, 10, 20)")
    return BackoffTable(tuple(_positive(delay, "a delay of the table") for delay in delays))


def linear(*, seconds: float = 0.0, minutes: float = 0.0) -> Linear:
    """Wait 1, 2, 3 … times the step: `linear(minutes=5)` is 5, 10, 15 minutes."""
    return Linear(_positive(seconds + 60 * minutes, "the step", zero=False))


def exponential(base: float = 1.0, *, factor: float = 2.0, cap: float = 60.0) -> Exponential:
    """Wait base × factor^(n-1), at most `cap`: `exponential(base=1, cap=60)` is 1, 2, 4 … 60."""
    if not 1 <= factor < math.inf:
        raise InvalidSetting(f"factor cannot be {factor}", hint="use a factor ≥ 1, so that waits do not get shorter")
    return Exponential(_positive(base, "base", zero=False), float(factor), _positive(cap, "cap", zero=False))


def delay(policy: Backoff, attempt: int, *, jitter: float) -> float:
    """Returns the seconds to wait after attempt number `attempt` (from 1) failed."""
    match policy:
        case BackoffTable(delays):
            wait = delays[min(attempt, len(delays)) - 1]
        case Linear(step):
            wait = step * attempt
        case Exponential(base, factor, cap):
            wait = _exponential(base, factor, cap, attempt)
        case _:
            assert_never(policy)
    return min(wait, LONGEST) * (1 + JITTER_SHARE * jitter)


def _exponential(base: float, factor: float, cap: float, attempt: int) -> float:
    try:
        return float(min(cap, base * factor ** (attempt - 1)))
    except OverflowError:
        return cap


def _positive(value: float, what: str, *, zero: bool = True) -> float:
    if not 0 <= value <= LONGEST or (value == 0 and not zero):
        raise InvalidSetting(f"{what} cannot be {value} s", hint=f"give seconds from 0 to {LONGEST:.0f}")
    return float(value)


DEFAULT: Final = table(5, 10, 20, 40, 80, 160)
