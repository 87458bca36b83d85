"""Functions as steps: their names, how their arguments and results are stored, and how an undo is found again."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from todoku.core.errors import InvalidMessage, InvalidSetting
from todoku.core.flow import RESULT_BYTES, Undo
from todoku.engine.encryption.secret_ref import SecretSources
from todoku.engine.jobs.decoders import decoder, result_decoder
from todoku.engine.jobs.handler import is_async
from todoku.engine.jobs.hints import Hints
from todoku.engine.jobs.job import Job
from todoku.engine.jobs.signature import Arguments
from todoku.engine.publish import Encoded, encode


class StepFunction:
    """One function that workflows call as a step. Built once: it resolves the annotations.

    `transactional`: its first parameter is an open transaction, which is no part of the stored arguments.
    """

    def __init__(self, function: Callable[..., Any], secrets: SecretSources, *, transactional: bool) -> None:
        self.name = getattr(function, "__qualname__", type(function).__qualname__).replace("<locals>.", "")
        hints = Hints(function, self.name, secrets)
        if hints.takes_context:
            raise InvalidSetting(
                f"{self.name} takes a Context, which a step does not have",
                hint="call it as a child, ctx.gather(job.call(…)), or write a function without ctx",
            )
        if transactional:
            _drop_first(hints, function)
        self.is_async = is_async(function)
        self._arguments = Arguments(hints)
        self._decode = result_decoder(hints.returns, self.name, secrets)

    def encode(self, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
        """Returns the arguments as JSON. InvalidMessage names a missing, extra or wrong one."""
        text: str = self._arguments.encoded(tuple(args), kwargs).text
        return bounded(text, f"the arguments of {self.name}")

    def decode_arguments(self, text: str) -> tuple[list[Any], dict[str, Any]]:
        """Returns the arguments of `encode`, by position and by name, as the types that the function takes."""
        return self._arguments.decoded(text)

    def encode_result(self, value: Any) -> str:
        """Returns what the function returned as JSON; in a process it was encoded already."""
        try:
            text = value.text if isinstance(value, Encoded) else encode(value)
        except InvalidMessage as error:
            raise InvalidMessage(f"{self.name} returned something that cannot be stored: {error}") from None
        return bounded(text, f"the result of {self.name}")

    def decode(self, text: str) -> Any:
        """Returns a stored result, as the type that the function says it returns."""
        try:
            return self._decode(text)
        except msgspec.DecodeError as error:
            raise InvalidMessage(
                f"the stored result of {self.name} does not fit its return type any more: {error}",
                hint="change the type so that it reads the old result, or rewind the run to this step",
            ) from None


def bounded(text: str, what: str) -> str:
    """Returns the text. InvalidMessage: it is larger than a step may keep (R14)."""
    if len(text.encode()) > RESULT_BYTES:
        raise InvalidMessage(
            f"{what} has {len(text.encode()):,} bytes, at most {RESULT_BYTES:,} are kept",
            hint="store it in a table or a bucket, and pass its key",
        )
    return text


def _drop_first(hints: Hints, function: Callable[..., Any]) -> None:
    if is_async(function) or not hints.parameters:
        raise InvalidSetting(
            f"{hints.name} cannot be a transactional step",
            hint="write a plain def whose first parameter is the transaction: def book(tx, order_id): …",
        )
    hints.parameters = hints.parameters[1:]
    hints.shape = hints.shape.replace(parameters=list(hints.shape.parameters.values())[1:])


class StepFunctions:
    """The functions that have been called as steps, by their code: a closure that is made anew is the same function."""

    def __init__(self, secrets: SecretSources) -> None:
        self._secrets = secrets
        self._known: dict[tuple[object, bool], StepFunction] = {}

    def of(self, function: Callable[..., Any], *, transactional: bool = False) -> StepFunction:
        """Returns the function as a step. InvalidSetting: it cannot be one."""
        code = getattr(function, "__code__", function), transactional
        if (known := self._known.get(code)) is None:
            known = self._known[code] = StepFunction(function, self._secrets, transactional=transactional)
        return known


def unwrap(function: Any) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Returns the function behind a job or a `functools.partial`, and the arguments that the partial has.

    InvalidSetting: it is none.
    """
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        args, kwargs, function = function.args + args, {**function.keywords, **kwargs}, function.func
    found = function.handler.function if isinstance(function, Job) else function
    if not callable(found):
        raise InvalidSetting(
            f"{found!r} is no function",
            hint="give the function and then its arguments: ctx.step(charge, order_id), not ctx.step(charge(order_id))",
        )
    return found, args, kwargs


def find_function(reference: str) -> Any:
    """Returns what stands under `module:name`. ImportError, AttributeError: nothing does."""
    module, _, path = reference.partition(":")
    found: Any = sys.modules.get(module) or importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


# ------------------------------------------------------------
# Undos are stored by the name of their function, because another process may call them.


def describe_undo(undo: Callable[..., Any]) -> str:
    """Returns the stored form of an undo. InvalidSetting: another process could not find its function."""
    function, args, kwargs = unwrap(undo)
    name = getattr(function, "__qualname__", "<none>")
    if "<" in name or kwargs:
        raise InvalidSetting(
            f"{name} cannot undo a step: a worker has to find it by its name",
            hint="use a function at the top of a module, or partial(function, argument) with arguments by position",
        )
    arguments = tuple(msgspec.Raw(encode(value).encode()) for value in args)
    return msgspec.json.encode(Undo(f"{function.__module__}:{name}", arguments)).decode()


def find_undo(stored: str) -> tuple[Callable[..., Any], list[Any]]:
    """Returns the function of a stored undo, and its first arguments. InvalidSetting: it is not there any more."""
    undo = msgspec.json.decode(stored, type=Undo)
    try:
        found = find_function(undo.function)
    except (ImportError, AttributeError):
        raise InvalidSetting(
            f"the function {undo.function} that undoes a step is not there any more",
            hint="deploy it again under this name, then replay the undo",
        ) from None
    function, _, _ = unwrap(found)
    return function, [msgspec.json.decode(raw) for raw in undo.arguments]


def undo_arguments(function: Callable[..., Any], first: Sequence[Any], result: str | None) -> list[Any]:
    """Returns the arguments of an undo: those stored with it, then the result of the step, as the type it takes."""
    hints = Hints(function, getattr(function, "__qualname__", "undo"))
    kinds = [hints.types[each.name] for each in hints.parameters]
    values = [
        decoder(kind, hints.name)(msgspec.json.encode(value)) if kind is not Any else value
        for value, kind in zip(first, kinds, strict=False)
    ]
    if len(values) < len(kinds):
        values.append(None if result is None else decoder(kinds[len(values)], hints.name)(result))
    return values
