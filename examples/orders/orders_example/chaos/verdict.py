"""What the broker's log says, what the ledger says, and whether it is the same."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from orders_example.broker.server import Noted

Entry = tuple[str, str, int, str]
"""Of the ledger: key, status, HTTP status, response."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to. `problems` is what must be empty."""

    at_once: Mapping[int, int]
    other: int
    accepted: int
    kills: int
    executed: int
    repeats: int
    problems: tuple[str, ...]


def judged(
    posted: Collection[str],
    at_once: Counter[int],
    other: int,
    log: Sequence[Noted],
    killed: Collection[int],
    ledger: Sequence[Entry],
) -> Verdict:
    """Compare the orders that were accepted with the broker's own log, and both with the ledger."""
    by_key: defaultdict[str, list[Noted]] = defaultdict(list)
    for noted in log:
        by_key[noted.key].append(noted)
    problems = [
        *_wrong_answers(at_once, other),
        *(f"{key} was accepted and never executed" for key in sorted(posted) if key not in by_key),
        *(f"{key} was executed and never accepted" for key in sorted(by_key) if key not in posted),
        *(problem for key, lines in by_key.items() for problem in _wrong_lines(key, lines, killed)),
        *_wrong_entries(posted, by_key, ledger),
    ]
    return Verdict(
        at_once=dict(at_once),
        other=other,
        accepted=len(posted),
        kills=len(killed),
        executed=sum(noted.event == "order" for noted in log),
        repeats=sum(noted.event == "repeat" for noted in log),
        problems=tuple(problems),
    )


def _wrong_answers(at_once: Counter[int], other: int) -> Iterator[str]:
    total = at_once.total()
    if at_once != {201: 1, 200: total - 1}:
        yield f"{total} identical orders at once were answered {dict(at_once)}"
    if other != 409:
        yield f"another body with their key was answered {other}"


def _wrong_lines(key: str, lines: Sequence[Noted], killed: Collection[int]) -> Iterator[str]:
    """One order, and each time it was asked for again, whoever had asked before was killed (I13)."""
    if [noted.event for noted in lines].count("order") != 1:
        yield f"{key} was executed {[noted.event for noted in lines].count('order')} times"
    for before in lines[:-1]:
        if before.worker not in killed:
            yield f"{key} was sent again although worker {before.worker} lives"


def _wrong_entries(
    posted: Collection[str], by_key: Mapping[str, Sequence[Noted]], ledger: Sequence[Entry]
) -> Iterator[str]:
    """The ledger has each order once, succeeded, with the broker's own reference."""
    entries = {key: (status, code, json.loads(response)) for key, status, code, response in ledger}
    if len(entries) != len(ledger) or entries.keys() != set(posted):
        yield f"the ledger has {len(ledger)} entries for {len(posted)} orders"
    for key, (status, code, response) in entries.items():
        told = response.get("broker", {}).get("order_ref")
        if (status, code) != ("succeeded", 200):
            yield f"the ledger says {status} {code} of {key}"
        elif key in by_key and told != by_key[key][0].execution.order_ref:
            yield f"the ledger says {told} of {key}, the broker {by_key[key][0].execution.order_ref}"
