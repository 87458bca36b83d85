"""What an answer means: the contract of seed 004, and when the next attempt is made."""

from __future__ import annotations

from typing import Any

import pytest

from tests.destinations.http.conftest import outgoing, send
from tests.destinations.http.receiving import Receiver, answer, receiving
from todoku.core.outcome import Abort, Done, Outcome, Retry

FINAL = {"Upstash_NonRetryable_Error": "true"}


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_2xx_is_an_acknowledgement(receiver: Receiver, status: int) -> None:
    """S4-22, S4-27. What was answered is nobody's business, unless there is a callback."""
    receiver.reply = answer(status)
    assert send(outgoing(receiver.url)) == [Done()]


ANSWERS: list[tuple[int, dict[str, str], dict[str, Any], type[Outcome], str]] = [
    (489, FINAL, {}, Abort, "HTTP_NON_RETRYABLE"),
    (489, {"upstash_nonretryable_error": "True"}, {}, Abort, "HTTP_NON_RETRYABLE"),
    (489, {"Upstash_NonRetryable_Error": "false"}, {}, Retry, "HTTP_4XX"),
    (489, {}, {}, Retry, "HTTP_4XX"),
    (400, FINAL, {}, Retry, "HTTP_4XX"),
    (400, FINAL, {"http_nonretryable_4xx": True}, Abort, "HTTP_NON_RETRYABLE"),
    (503, FINAL, {"http_nonretryable_4xx": True}, Retry, "HTTP_5XX"),
    (404, {}, {}, Retry, "HTTP_4XX"),
    (404, {}, {"http_retry_4xx": False}, Abort, "HTTP_4XX"),
    (429, {}, {"http_retry_4xx": False}, Retry, "HTTP_BUSY"),
    (410, {}, {}, Abort, "HTTP_GONE"),
    (500, {}, {}, Retry, "HTTP_5XX"),
]


@pytest.mark.parametrize(("status", "headers", "given", "outcome_type", "reason"), ANSWERS)
def test_every_other_answer_is_a_failure(
    receiver: Receiver,
    status: int,
    headers: dict[str, str],
    given: dict[str, Any],
    outcome_type: type[Outcome],
    reason: str,
) -> None:
    """S4-20, S4-23, S4-24, S4-26."""
    receiver.reply = answer(status, b"because", **headers)
    (outcome,) = send(outgoing(receiver.url), **given)
    assert isinstance(outcome, Retry | Abort)
    assert (type(outcome), outcome.reason) == (outcome_type, reason)
    assert outcome.response is not None
    assert (outcome.response.status, outcome.response.body) == (status, b"because")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(receiver: Receiver, status: int) -> None:
    """§3: it leads where nobody checked."""
    with receiving() as elsewhere:
        receiver.reply = answer(status, location=elsewhere.url)
        (outcome,) = send(outgoing(receiver.url))
        assert isinstance(outcome, Retry)
        assert outcome.reason == "HTTP_3XX"
        assert not elsewhere.connections


@pytest.mark.parametrize(
    ("attempt", "expression", "headers", "wait"),
    [
        (1, None, {}, 12.182),
        (2, None, {}, 148.413),
        (3, None, {}, 1808.042),
        (9, None, {}, 86_400.0),
        (1, "1000 * pow(2, retried)", {}, 1.0),
        (3, "1000 * pow(2, retried)", {}, 4.0),
        (1, "1000", {"retry_after": "7"}, 7.0),
        (1, "1000", {"x_ratelimit_reset": "1m30s"}, 90.0),
        (1, "1000", {"retry_after": "99999999"}, 1.0),
        (1, "1000", {"retry_after": "soon"}, 1.0),
    ],
)
def test_the_next_attempt_waits_as_the_receiver_or_the_request_or_the_curve_says(
    receiver: Receiver, attempt: int, expression: str | None, headers: dict[str, str], wait: float
) -> None:
    """S4: e^(2.5 n) seconds up to a day, unless the request has an expression or the receiver a wish."""
    receiver.reply = answer(500, **headers)
    (outcome,) = send(outgoing(receiver.url, attempt=attempt, retry_delay=expression))
    assert isinstance(outcome, Retry)
    assert outcome.after == pytest.approx(wait, rel=1e-3)


def test_jitter_makes_it_later_and_never_earlier(receiver: Receiver) -> None:
    receiver.reply = answer(500)
    (outcome,) = send(outgoing(receiver.url, retry_delay="1000"), chance=0.999)
    assert isinstance(outcome, Retry)
    assert outcome.after == pytest.approx(1.0999)


def test_a_success_with_a_callback_carries_its_answer(receiver: Receiver) -> None:
    receiver.reply = answer(201, b"made", x_a="1")
    (outcome,) = send(outgoing(receiver.url, callback={"url": "https://a.example"}))
    assert isinstance(outcome, Done)
    assert outcome.response is not None
    assert (outcome.response.status, outcome.response.body, outcome.response.headers["x-a"]) == (201, b"made", "1")
