"""Upstash-Retry-Delay: a grammar of our own, values between nothing and a day, and no text that can hurt (S4-19)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.making import any_text, quick
from todoku.core.backoff import DEFAULT_DELAY, LONGEST_MS, MAX_DEPTH, MAX_LENGTH, evaluate, parse
from todoku.core.errors import InvalidMessage


def delays(text: str, number: int = 1) -> list[float]:
    expression = parse(text)
    return [evaluate(expression, retried) for retried in range(number)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("1000", [1000, 1000], id="a constant"),
        pytest.param("1000 * (1 + retried)", [1000, 2000, 3000], id="a line"),
        pytest.param("1000 * pow(2, retried)", [1000, 2000, 4000, 8000], id="S4-19: 1, 2, 4 s"),
        pytest.param("pow(2, retried)*1000", [1000, 2000, 4000], id="without spaces"),
        pytest.param("max(1000, 500 * retried)", [1000, 1000, 1000, 1500], id="at least"),
        pytest.param("min(2500, 1000 * (retried + 1), 9000)", [1000, 2000, 2500], id="at most, of three"),
        pytest.param("2 + 3 * 4", [14], id="products before sums"),
        pytest.param("(2 + 3) * 4", [20], id="brackets first"),
        pytest.param("10 - 4 - 3", [3], id="from the left"),
        pytest.param("100 / 10 / 2", [5], id="from the left, divided"),
        pytest.param("2 * -3 + 10", [4], id="a sign"),
        pytest.param("- - +7", [7], id="signs"),
        pytest.param("abs(0 - 7)", [7], id="abs"),
        pytest.param("sqrt(16)", [4], id="sqrt"),
        pytest.param("exp(0)", [1], id="exp"),
        pytest.param("floor(2.7) + ceil(2.1)", [5], id="floor and ceil"),
        pytest.param("round(2.5) + round(2.4)", [5], id="halves go up"),
        pytest.param("10 + round(-2.5)", [7], id="and away from zero"),
        pytest.param(".5 * 4.", [2], id="half a number is one"),
        pytest.param("\t 1 + 1 \t", [2], id="blanks around"),
        pytest.param("1" + " + 1" * 120, [121], id="a long sum is not deep"),
        pytest.param("min(3)", [3], id="the least of one"),
    ],
)
def test_an_expression_is_worth(text: str, expected: list[float]) -> None:
    assert delays(text, len(expected)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("0 - 5", 0, id="never earlier than now"),
        pytest.param("99999999999", LONGEST_MS, id="never later than a day"),
        pytest.param("1 / retried", LONGEST_MS, id="divided by zero"),
        pytest.param("-1 / retried", 0, id="the other way"),
        pytest.param("0 / retried", LONGEST_MS, id="no value at all"),
        pytest.param("exp(100000)", LONGEST_MS, id="overflow"),
        pytest.param("-exp(100000)", 0, id="overflow downwards"),
        pytest.param("pow(10, 400)", LONGEST_MS, id="overflow of a power"),
        pytest.param("pow(-10, 309)", 0, id="of an odd one"),
        pytest.param("pow(-10, 310)", LONGEST_MS, id="of an even one"),
        pytest.param("pow(0, -1)", LONGEST_MS, id="a power that divides by zero"),
        pytest.param("pow(-1, .5)", LONGEST_MS, id="a power without a value"),
        pytest.param("sqrt(-1)", LONGEST_MS, id="a root without a value"),
        pytest.param("min(5, sqrt(-1))", LONGEST_MS, id="not even at most"),
        pytest.param("floor(1 / 0) + round(0 / 0)", LONGEST_MS, id="rounding what is no number"),
        pytest.param("min(60000, pow(10, 400))", 60_000, id="a cap caps what overflowed"),
        pytest.param("min(60000, 1000 / retried)", 60_000, id="and what was divided by zero"),
    ],
)
def test_what_cannot_be_computed_is_clamped_and_never_raised(text: str, expected: float) -> None:
    assert delays(text) == [expected]


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "1 +", "+", "2 2", "retried retried", "(1", "1)", "()", "1,2", "pow(1)", "pow(1, 2, 3)",
        "sqrt(1, 2)",
        "min()", "min(1,)", "pow 2", "pow", "retried(1)", "Retried", "RETRIED", "retries", "1e3", "0x10", "1.2.3",
        "..",
        "2 ** 3", "2 ^ 3", "2 % 3", "2 // 3", "1 if 1 else 2", "lambda: 1", "__import__('os')", "abs.__class__",
        "1;2",
        "[1]", "'a'", "1\n+1", "１", "²", "pow(2，3)", "x", "1 < 2", "nan", "inf", "\x00",
        "9" * 30, "(" * 40 + "1" + ")" * 40,
        "-" * 60 + "1", "abs(" * 40 + "1" + ")" * 40, "1+" * 400 + "1",
    ],
)  # fmt: skip
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidMessage, match="Upstash-Retry-Delay") as refused:
        parse(text)
    assert refused.value.hint


def test_the_default_is_qstashs_own() -> None:
    """min(86400, e^(2.5 n)) seconds at the n-th retry: 12 s, 2 min 28 s, 30 min 8 s, 6 h 7 min, a day."""
    seconds = [evaluate(DEFAULT_DELAY, retried) / 1000 for retried in range(6)]
    assert seconds == pytest.approx([min(86_400, math.exp(2.5 * n)) for n in range(1, 7)])


def test_the_longest_and_the_deepest_allowed_are_allowed() -> None:
    assert delays("1" + "+1" * ((MAX_LENGTH - 1) // 2)) == [1 + (MAX_LENGTH - 1) // 2]
    assert delays("(" * (MAX_DEPTH - 1) + "1" + ")" * (MAX_DEPTH - 1)) == [1]


@quick
@given(st.text("0123456789.+-*/(), retidpowsqabxflcnum", max_size=60) | any_text, st.integers(0, 10_000))
def test_no_text_does_anything_but_wait_or_be_refused(text: str, retried: int) -> None:
    try:
        expression = parse(text)
    except InvalidMessage:
        return
    assert 0 <= evaluate(expression, retried) <= LONGEST_MS


_parts = st.recursive(
    st.integers(0, 10**9).map(str) | st.just("retried") | st.floats(0, 1e6).map(lambda number: f"{number:.6f}"),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda parts: f"({' '.join(parts)})"),
        st.tuples(st.sampled_from(["sqrt", "abs", "exp", "floor", "ceil", "round"]), inner).map(
            lambda p: f"{p[0]}({p[1]})"
        ),
        st.tuples(st.sampled_from(["pow", "min", "max"]), inner, inner).map(lambda p: f"{p[0]}({p[1]}, {p[2]})"),
        inner.map(lambda part: f"-{part}"),
    ),
    max_leaves=8,
)


@quick
@given(_parts, st.integers(0, 1000))
def test_every_expression_of_the_grammar_has_a_delay_for_every_retry(text: str, retried: int) -> None:
    if len(text) <= MAX_LENGTH:
        assert 0 <= evaluate(parse(text), retried) <= LONGEST_MS
