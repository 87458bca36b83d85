"""Back-off: the policies of the source documents to the second, and jitter that only ever waits longer."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.making import jitters, policies, quick
from todoku.core.backoff import DEFAULT, LONGEST, Backoff, delay, exponential, linear, table
from todoku.core.errors import InvalidSetting


def waits(policy: Backoff, attempts: int) -> list[float]:
    return [delay(policy, attempt, jitter=0) for attempt in range(1, attempts + 1)]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        pytest.param(DEFAULT, [5, 10, 20, 40, 80, 160, 160, 160], id="S0-91 and S0-49: the last entry again"),
        pytest.param(table(7), [7, 7, 7], id="a table of one"),
        pytest.param(table(0, 3), [0, 3, 3], id="at once, then not"),
        pytest.param(exponential(base=1, cap=60), [1, 2, 4, 8, 16, 32, 60, 60], id="S1-33: LEAST(60, 2^n)"),
        pytest.param(exponential(base=1, factor=2), [1, 2, 4], id="S4-19: 1, 2, 4 s"),
        pytest.param(exponential(base=2, factor=3, cap=100), [2, 6, 18, 54, 100], id="any factor"),
        pytest.param(exponential(base=90, cap=60), [60, 60], id="a cap below the base"),
        pytest.param(exponential(base=5, factor=1), [5, 5, 5], id="a factor of 1 is constant"),
        pytest.param(linear(minutes=5), [300, 600, 900], id="S3-55: 5, 10, 15 minutes"),
        pytest.param(linear(seconds=30, minutes=1), [90, 180], id="minutes and seconds"),
    ],
)
def test_a_policy_waits_like_this(policy: Backoff, expected: list[float]) -> None:
    assert waits(policy, len(expected)) == expected


@pytest.mark.parametrize("policy", [DEFAULT, exponential(), linear(minutes=5)])
def test_jitter_adds_up_to_a_tenth_and_is_never_early(policy: Backoff) -> None:
    """§7: 0–10 %, so that what failed together does not come back together (S2-10)."""
    for attempt in (1, 2, 5):
        exact = delay(policy, attempt, jitter=0)
        assert delay(policy, attempt, jitter=0.5) == pytest.approx(1.05 * exact)
        assert exact < delay(policy, attempt, jitter=0.999) < 1.1 * exact


@pytest.mark.parametrize("attempt", [10, 1_000, 5_000, 1_000_000])
@pytest.mark.parametrize(
    "policy", [exponential(base=0.001, factor=1.0001, cap=3600), exponential(), linear(minutes=5), DEFAULT]
)
def test_no_number_of_attempts_overflows(policy: Backoff, attempt: int) -> None:
    wait = delay(policy, attempt, jitter=0)
    assert 0 < wait <= LONGEST


def test_a_curve_ends_at_its_cap_however_steep_it_is() -> None:
    assert waits(exponential(base=1e-300, factor=1e300, cap=60), 4)[1:] == [1, 60, 60]
    assert delay(exponential(base=1, factor=10, cap=60), 10**9, jitter=0) == 60


def test_no_wait_is_longer_than_a_month() -> None:
    """I1 liveness: a delivery must come back some day."""
    assert delay(linear(minutes=60), 10**6, jitter=0) == LONGEST == 30 * 86_400


@quick
@given(policies, st.integers(1, 200), jitters)
def test_a_wait_is_never_below_the_policy_and_never_a_tenth_above_it(
    policy: Backoff, attempt: int, jitter: float
) -> None:
    exact = delay(policy, attempt, jitter=0)
    assert exact <= delay(policy, attempt, jitter=jitter) <= exact * 1.1
    assert math.isfinite(exact)


@quick
@given(policies.filter(lambda policy: not hasattr(policy, "delays")), st.integers(1, 10_000), st.integers(1, 10_000))
def test_a_later_attempt_never_waits_less(policy: Backoff, one: int, other: int) -> None:
    sooner, later = sorted((one, other))
    assert delay(policy, sooner, jitter=0) <= delay(policy, later, jitter=0)


@quick
@given(policies, st.integers(1, 100), jitters, jitters)
def test_more_jitter_never_waits_less(policy: Backoff, attempt: int, one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert delay(policy, attempt, jitter=less) <= delay(policy, attempt, jitter=more)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (table, "at least one delay"),
        (lambda: table(5, -1), "cannot be -1"),
        (lambda: table(math.nan), "cannot be nan"),
        (lambda: table(math.inf), "cannot be inf"),
        (lambda: table(LONGEST + 1), "a delay of the table"),
        (linear, "the step cannot be 0"),
        (lambda: linear(minutes=-5), "the step cannot be -300"),
        (lambda: exponential(0), "base cannot be 0"),
        (lambda: exponential(cap=0), "cap cannot be 0"),
        (lambda: exponential(cap=math.inf), "cap cannot be inf"),
        (lambda: exponential(factor=0.5), "factor cannot be 0.5"),
        (lambda: exponential(factor=math.nan), "factor cannot be nan"),
        (lambda: exponential(factor=math.inf), "factor cannot be inf"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_with_a_hint(make: Callable[[], Backoff], said: str) -> None:
    with pytest.raises(InvalidSetting, match=said) as caught:
        make()
    assert caught.value.hint
