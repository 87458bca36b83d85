"""A few hundred hostile inputs of each edge to a real daemon on each store; `make fuzz` sends as many as there is time.

Nothing is answered 5xx, nothing hangs, no acknowledged body is lost. And the fuzzer itself: it repeats a run by its
seed, it knows every route, and it does notice what it is there for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import todoku
from tests.fuzz.answers import hostile_answer
from tests.fuzz.inputs import Failure, Input, read, write
from tests.fuzz.requests import any_request, storing_request
from tests.fuzz.run import ROUND, Tally, fuzz_receivers, fuzz_requests, send_again
from tests.fuzz.target import Target, edges, target
from tests.support.world import Backend

SEED = 10
ROUNDS = 3
"""Of requests: such as store, such as may do anything, and such as store once more."""


@pytest.fixture
def fuzzed(tmp_path: Path, url: str, backend: Backend) -> Iterator[Target]:
    with target(tmp_path, url, backend) as found:
        yield found


def never() -> bool:
    return False


@pytest.mark.slow
def test_hostile_requests_are_answered_and_lose_nothing(fuzzed: Target) -> None:
    tally = Tally()
    fuzz_requests(fuzzed, SEED, never, tally, most=ROUNDS * ROUND)
    assert [failure.what for failure in tally.failures] == []
    assert sum(tally.inputs.values()) == ROUNDS * ROUND
    assert tally.bodies > ROUND
    assert tally.healthy > 0


@pytest.mark.slow
def test_hostile_answers_do_not_stop_a_worker(fuzzed: Target) -> None:
    tally = Tally()
    fuzz_receivers(fuzzed, SEED, never, tally, most=ROUND)
    assert [failure.what for failure in tally.failures] == []
    assert tally.inputs == {"receiver": ROUND}


def test_the_fuzzer_notices_a_body_that_is_not_what_was_sent(fuzzed: Target) -> None:
    """The daemon serves the input rightly, and the fuzzer expects something else of it."""
    right = next(each for each in (storing_request(SEED, number) for number in range(99)) if each.edge == "/v2/publish")
    tally = Tally()
    send_again(fuzzed, right, tally)
    assert tally.failures == []
    expected = tuple(tuple(body + b"!" for body in bodies) for bodies in right.bodies)
    send_again(fuzzed, msgspec.structs.replace(right, bodies=expected), tally)
    assert {failure.what.partition(":")[0] for failure in tally.failures} == {"lost body"}
    tally = Tally()
    send_again(fuzzed, msgspec.structs.replace(right, bodies=right.bodies[:0]), tally)
    assert tally.failures == []


def test_a_seed_makes_the_same_inputs_and_a_file_keeps_one(tmp_path: Path) -> None:
    known = [("GET", "/healthz"), ("POST", "/v2/publish/{destination:path}")]

    def made(seed: int) -> list[Input]:
        return [
            each
            for number in range(50)
            for each in (storing_request(seed, number), any_request(seed, number, known), hostile_answer(seed, number))
        ]

    assert made(1) == made(1)
    assert made(1) != made(2)
    for place, each in enumerate(made(3)):
        failure = Failure("hang", "sqlite", each)
        assert read(write(failure, tmp_path / str(place))) == failure


def test_every_route_is_an_edge(box: todoku.App) -> None:
    found = {path for _, path in edges(box)}
    assert {"/", "/healthz", "/readyz", "/metrics", "/api/messages", "/ingest/{source}", "/v2/batch"} <= found
    assert "/api/v1/deliveries" in found
    assert len(found) > 70
