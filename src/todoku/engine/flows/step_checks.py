"""What a workflow gives to `ctx`: each is checked before anything is stored, and a refusal says what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec

from todoku.core.backoff import DEFAULT, Backoff
from todoku.core.errors import InvalidMessage
from todoku.core.message import MAX_KEY_LENGTH, MAX_TOPIC_LENGTH
from todoku.core.outcome import Duration, seconds
from todoku.engine.jobs.decoders import decoder
from todoku.engine.publish import check_text

_LONGEST_NAME: Final = 200
"""Characters of the name of a step: the key begins with it, and an index of PostgreSQL takes 2,700 bytes."""


def checked_key(key: str | None) -> str | None:
    """Returns the key of a step. InvalidMessage: both databases could not store it."""
    if key is not None:
        check_text(key, "key", MAX_KEY_LENGTH)
    return key


def checked_backoff(backoff: Backoff | None) -> Backoff:
    """Returns the pauses between the attempts of a step. InvalidMessage: they are none."""
    if backoff is not None and not isinstance(backoff, Backoff):
        raise InvalidMessage(f"backoff cannot be {backoff!r}", hint="backoff=todoku.exponential(…), or leave it out")
    return backoff or DEFAULT


def sleep_seconds(duration: Duration, **parts: float) -> float:
    """Returns the seconds of a sleep: a duration and its parts together. InvalidMessage: they are none."""
    try:
        given = duration if isinstance(duration, timedelta) else timedelta(seconds=duration)
        total = given + timedelta(**parts)
    except (TypeError, ValueError, OverflowError):
        said = ", ".join(f"{name}={value!r}" for name, value in parts.items() if value != 0)
        raise InvalidMessage(
            f"a run cannot sleep for {said or repr(duration)}",
            hint="give seconds ≥ 0, a timedelta, or hours=1, at most 10 years",
        ) from None
    return wait_seconds(total)


def wait_seconds(duration: Duration) -> float:
    """Returns the seconds of a wait. InvalidMessage: it is negative, over ten years, or not a number."""
    return seconds(duration, what="the time of a wait")


def check_signal_name(name: str) -> None:
    """Raises InvalidMessage if a signal cannot have this name."""
    check_text(name, "name of a signal", MAX_TOPIC_LENGTH)


def signal_decoder(name: str, kind: Any) -> Callable[[str], Any]:
    """Returns how the value of a signal is read. InvalidSetting: nothing can be read as this type.

    InvalidMessage of the decoder: the value is of another type.
    """
    check_signal_name(name)
    decode = decoder(kind, f"the signal {name}")

    def read(text: str) -> Any:
        try:
            return decode(text)
        except msgspec.DecodeError as error:
            raise InvalidMessage(
                f"the signal {name} is no {getattr(kind, '__name__', kind)}: {error}",
                hint="let the code catch InvalidMessage and wait again, or read it as a type that fits; then replay",
            ) from None

    return read


def check_publish_options(options: Mapping[str, Any]) -> None:
    """Raises InvalidMessage for a transaction, which `ctx.publish` does not take."""
    if "tx" in options:
        raise InvalidMessage(
            "ctx.publish takes no tx: it commits with its step",
            hint="leave tx out; in a transactional step call box.publish(…, tx=tx)",
        )


def short_name(name: str) -> str:
    """Returns the name of a step that is made of the names of others, cut if it is long. Its key has the arguments."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 2]} …"
