"""What is sent: one input, made from a seed and a number alone, and as a file that can be sent again."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Literal

import msgspec

Ending = Literal["wait", "half-close", "reset"]
"""What the sender does after its last byte: waits for the other side to end, says that it has ended, or hangs up."""

TOKEN = b"the-token-of-the-fuzzed-daemon-0123456789"
SIGNATURE = b"{the signature}"
"""Stands in the bytes for the signature of `signed`, which has the time in it when it is sent."""


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """One hostile input. `segments` are written one by one."""

    seed: int
    number: int
    edge: str
    """The route it is meant for, or `receiver`."""
    segments: tuple[bytes, ...]
    ending: Ending = "wait"
    bodies: tuple[tuple[bytes, ...], ...] = ()
    """For each request in it whose framing is certain: what must be stored if it is answered 2xx, and only then."""
    signed: bytes = b""
    """The body that SIGNATURE is for."""


class Failure(msgspec.Struct, frozen=True):
    """An input that went wrong, and how."""

    what: str
    store: str
    input: Input


def chance_of(seed: int, number: int, of: str) -> Random:
    """The same choices for the same seed and number, in any process."""
    return Random(f"{of}/{seed}/{number}")


def cut(chance: Random, data: bytes) -> tuple[bytes, ...]:
    """The same bytes in one to four segments."""
    places = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 0, 0, 1, 1, 2, 3))))
    pieces = [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]
    return tuple(piece for piece in pieces if piece)


def flip(chance: Random, data: bytes) -> bytes:
    """The same bytes, some of them changed, doubled or left out."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        if changed:
            place = chance.randrange(len(changed))
            changed[place : place + 1] = chance.choice(
                (b"", bytes([chance.randrange(256)]), bytes(changed[place : place + 1]) * 2, b"\r\n", b"\x00")
            )
    return bytes(changed)


def write(failure: Failure, folder: Path) -> Path:
    """Write a failing input to a file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{failure.store}-{failure.input.seed}-{failure.input.number}-{_word(failure.input.edge)}.json"
    file.write_bytes(msgspec.json.format(msgspec.json.encode(failure)) + b"\n")
    return file


def read(file: Path) -> Failure:
    """A failing input as it was written."""
    return msgspec.json.decode(file.read_bytes(), type=Failure)


def _word(edge: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in edge)[:60].strip("-")
