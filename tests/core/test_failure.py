"""The one classifier: transient ⇒ Retry, deterministic ⇒ Abort, unknown ⇒ Retry and visible (§4 Execute, S2-8)."""

from __future__ import annotations

import errno
import json
import socket
import sqlite3
import ssl
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.making import any_text, quick, reasons
from todoku.core.backoff import LONGEST
from todoku.core.failure import Answering, DeliveryError, Retrying, classify, classify_status
from todoku.core.outcome import Abort, Done, Outcome, Response, Retry, Snooze

NO_4XX = Answering(retry_4xx=False)


class BrokerDown(ConnectionError):
    """Somebody's own error, of a known family."""


class Strange(Exception):
    """An error nobody told us about."""


class Unspeakable(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class UnspeakableDelivery(DeliveryError):
    """The same, of a destination."""

    __str__ = Unspeakable.__str__


def bad_json() -> Exception:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    return caught.value


def bad_payload(text: str) -> Callable[[], Exception]:
    def make() -> Exception:
        with pytest.raises(msgspec.DecodeError) as caught:
            msgspec.json.decode(text, type=dict[str, int])
        return caught.value

    return make


TRANSIENT = [
    ("S3-79", ConnectionRefusedError("refused"), "NETWORK"),
    ("S3-79", ConnectionResetError("reset"), "NETWORK"),
    ("S3-79", BrokenPipeError("pipe"), "NETWORK"),
    ("S3-79", socket.gaierror("no such host"), "NETWORK"),
    ("S3-79", ssl.SSLError("handshake"), "NETWORK"),
    ("S3-79", BrokerDown("down"), "NETWORK"),
    ("S3-80", TimeoutError("late"), "TIMEOUT"),
    ("S3-80", OSError(errno.ETIMEDOUT, "late"), "TIMEOUT"),
    ("S3-81", MemoryError(), "RESOURCES"),
    ("S3-81", OSError(errno.EMFILE, "Too many open files"), "NETWORK"),
    ("S4-26", sqlite3.OperationalError("database is locked"), "INTERNAL_ERROR"),
    ("a deploy may bring it", FileNotFoundError("template.html"), "INTERNAL_ERROR"),
    ("a deploy may grant it", PermissionError("secret"), "INTERNAL_ERROR"),
]
DETERMINISTIC = [
    ("S3-82, S0-62", bad_json, "BAD_PAYLOAD"),
    ("S3-82", bad_payload("{"), "BAD_PAYLOAD"),
    ("S3-82", lambda: b"\xff".decode, "BAD_PAYLOAD"),
    ("S3-84", bad_payload('{"n": "x"}'), "BAD_PAYLOAD"),
    ("S3-83", lambda: DeliveryError("UNKNOWN_DESTINATION", retryable=False), "UNKNOWN_DESTINATION"),
    ("S4-25", lambda: DeliveryError("BAD_SIGNATURE", "v1", retryable=False), "BAD_SIGNATURE"),
]


@pytest.mark.parametrize(("requirement", "error", "reason"), TRANSIENT)
def test_a_transient_failure_is_tried_again(requirement: str, error: Exception, reason: str) -> None:
    outcome = classify(error)
    assert isinstance(outcome, Retry)
    assert (outcome.reason, outcome.after) == (reason, None)
    assert type(error).__name__ in outcome.detail
    assert str(error) in outcome.detail


@pytest.mark.parametrize(("requirement", "make", "reason"), DETERMINISTIC)
def test_a_deterministic_failure_is_a_dead_letter_at_once(
    requirement: str, make: Callable[[], object], reason: str
) -> None:
    """S2-11."""
    error = make()
    if callable(error):
        with pytest.raises(UnicodeDecodeError) as caught:
            error()
        error = caught.value
    assert isinstance(error, Exception)
    outcome = classify(error)
    assert isinstance(outcome, Abort)
    assert outcome.reason == reason


@pytest.mark.parametrize(
    "error", [Strange("?"), ValueError("?"), KeyError("?"), ZeroDivisionError("?"), ExceptionGroup("?", [OSError()])]
)
def test_what_nobody_knows_is_tried_again_and_visible(error: Exception) -> None:
    """§4: unknown ⇒ Retry under INTERNAL_ERROR (S0-46), with its type and text to read."""
    outcome = classify(error)
    assert outcome == Retry(reason="INTERNAL_ERROR", detail=f"{type(error).__name__}: {error}")


@pytest.mark.parametrize("outcome", [Retry(9, "BUSY", "x"), Abort("NO", "y"), Snooze(60)])
def test_an_outcome_that_was_raised_is_itself(outcome: Retry | Abort | Snooze) -> None:
    assert classify(outcome) is outcome


@pytest.mark.parametrize("retryable", [True, False])
@pytest.mark.parametrize(("detail", "stored"), [("", "BROKER_TIMEOUT"), ("2.5 s", "2.5 s")])
def test_a_destination_may_say_what_it_knows(retryable: bool, detail: str, stored: str) -> None:
    """S0-46, S0-47."""
    outcome = classify(DeliveryError("BROKER_TIMEOUT", detail, retryable=retryable))
    assert isinstance(outcome, Retry if retryable else Abort)
    assert (outcome.reason, outcome.detail) == ("BROKER_TIMEOUT", stored)


@pytest.mark.parametrize("retryable", [True, False])
def test_a_destination_that_says_a_sentence_is_still_understood(retryable: bool) -> None:
    """§1 reason: low cardinality. The sentence is kept where text belongs, the verdict is obeyed."""
    outcome = classify(DeliveryError("order 17 was refused", "by the broker", retryable=retryable))
    assert isinstance(outcome, Retry if retryable else Abort)
    assert outcome.reason == "INTERNAL_ERROR"
    assert outcome.detail == "order 17 was refused: by the broker"


@pytest.mark.parametrize("error", [Unspeakable(), UnspeakableDelivery("BAD", retryable=True)])
def test_an_error_that_cannot_be_printed_is_classified_all_the_same(error: Exception) -> None:
    """I1: a delivery whose outcome cannot be decided would be stuck in sending."""
    outcome = classify(error)
    assert isinstance(outcome, Retry)
    assert "cannot be read" in outcome.detail


ANSWERS: list[tuple[str, int, Outcome]] = [
    ("S4-22 ack", 204, Done()),
    ("S4-27 also for duplicates", 200, Done()),
    ("any 2xx", 299, Done()),
    ("S4-23 without its header", 489, Retry(reason="HTTP_4XX", detail="HTTP 489")),
    ("gone for good", 410, Abort("HTTP_GONE", "HTTP 410")),
    ("S4-24", 500, Retry(reason="HTTP_5XX", detail="HTTP 500")),
    ("S4-26", 503, Retry(reason="HTTP_5XX", detail="HTTP 503")),
    ("S4-24", 599, Retry(reason="HTTP_5XX", detail="HTTP 599")),
    ("busy", 408, Retry(reason="HTTP_BUSY", detail="HTTP 408")),
    ("busy", 425, Retry(reason="HTTP_BUSY", detail="HTTP 425")),
    ("busy", 429, Retry(reason="HTTP_BUSY", detail="HTTP 429")),
    ("a client error", 400, Retry(reason="HTTP_4XX", detail="HTTP 400")),
    ("a client error", 404, Retry(reason="HTTP_4XX", detail="HTTP 404")),
    ("a redirect leads where nobody checked", 302, Retry(reason="HTTP_3XX", detail="HTTP 302")),
    ("no answer", 101, Abort("HTTP_UNEXPECTED", "HTTP 101")),
    ("no status", 0, Abort("HTTP_UNEXPECTED", "HTTP 0")),
]


@pytest.mark.parametrize(("requirement", "status", "outcome"), ANSWERS)
def test_the_status_of_an_http_answer_decides(requirement: str, status: int, outcome: Outcome) -> None:
    """S4-20."""
    assert classify_status(status) == outcome


FINAL: list[tuple[int, bool, Outcome]] = [
    (489, False, Abort("HTTP_NON_RETRYABLE", "HTTP 489")),
    (489, True, Abort("HTTP_NON_RETRYABLE", "HTTP 489")),
    (400, False, Retry(reason="HTTP_4XX", detail="HTTP 400")),
    (400, True, Abort("HTTP_NON_RETRYABLE", "HTTP 400")),
    (429, True, Abort("HTTP_NON_RETRYABLE", "HTTP 429")),
    (500, True, Retry(reason="HTTP_5XX", detail="HTTP 500")),
    (204, True, Done()),
]


@pytest.mark.parametrize(("status", "final_4xx", "outcome"), FINAL)
def test_a_receiver_says_that_another_attempt_would_fail_too(status: int, final_4xx: bool, outcome: Outcome) -> None:
    """S4-23: with 489, and by policy with every client error."""
    assert classify_status(status, final=True, answering=Answering(final_4xx=final_4xx)) == outcome


@pytest.mark.parametrize("status", [400, 401, 404, 489, 499])
def test_a_sender_may_choose_not_to_repeat_client_errors(status: int) -> None:
    assert classify_status(status, answering=NO_4XX) == Abort("HTTP_4XX", f"HTTP {status}")


@pytest.mark.parametrize("status", [200, 302, 404, 410, 489, 503])
def test_every_outcome_carries_what_was_answered(status: int) -> None:
    answered = Response(status, {"Server": "x"}, b"why")
    outcome = classify_status(status, final=True, response=answered)
    assert isinstance(outcome, Done | Retry | Abort)
    assert outcome.response == answered


@pytest.mark.parametrize("status", [408, 429, 500])
def test_busy_and_broken_are_repeated_whatever_the_policy_for_client_errors(status: int) -> None:
    assert isinstance(classify_status(status, answering=NO_4XX), Retry)


@pytest.mark.parametrize("status", [302, 404, 429, 503])
@pytest.mark.parametrize(("said", "believed"), [(None, None), (0.0, 0.0), (17.0, 17.0), (LONGEST, LONGEST)])
def test_retry_after_is_obeyed(status: int, said: float | None, believed: float | None) -> None:
    outcome = classify_status(status, retry_after=said)
    assert isinstance(outcome, Retry)
    assert outcome.after == believed


@pytest.mark.parametrize("said", [-1.0, float("nan"), float("inf"), LONGEST + 1])
def test_a_retry_after_that_makes_no_sense_is_ignored(said: float) -> None:
    """A receiver must not be able to park a delivery for ever, nor to fail the settle of a batch (I13)."""
    outcome = classify_status(503, retry_after=said)
    assert isinstance(outcome, Retry)
    assert outcome.after is None


KINDS = [ValueError, OSError, TimeoutError, MemoryError, BrokerDown, Strange, json.JSONDecodeError, KeyError]


def instance(kind: type[Exception], text: str) -> Exception:
    return json.JSONDecodeError(text, "", 0) if kind is json.JSONDecodeError else kind(text)


errors = st.one_of(
    st.builds(instance, st.sampled_from(KINDS), any_text),
    st.builds(DeliveryError, reasons | any_text, any_text, retryable=st.booleans()),
    st.builds(UnspeakableDelivery, reasons | any_text, any_text),
    st.builds(Unspeakable),
)


@quick
@given(errors)
def test_every_error_has_an_outcome_that_can_be_stored(error: Exception) -> None:
    """Classify never raises, and gives one of the three; unknown is never a dead letter."""
    outcome = classify(error)
    assert isinstance(outcome, Retry | Abort)
    assert len(outcome.detail) <= 512
    assert "\0" not in outcome.detail
    if isinstance(error, DeliveryError):
        assert isinstance(outcome, Retry) == error.retryable
    else:
        assert isinstance(outcome, Abort) == isinstance(error, json.JSONDecodeError)


@quick
@given(st.integers(-1000, 10_000), st.none() | st.floats(), st.booleans())
def test_every_status_has_an_outcome(status: int, retry_after: float | None, retry_4xx: bool) -> None:
    outcome = classify_status(status, retry_after=retry_after, answering=Answering(retry_4xx=retry_4xx))
    assert isinstance(outcome, Done) == (200 <= status < 300)
    if status >= 500:
        assert isinstance(outcome, Retry)


@pytest.mark.parametrize(
    ("retrying", "error", "kind"),
    [
        (Retrying(only=(OSError,)), ConnectionResetError(), Retry),
        (Retrying(only=(OSError,)), KeyError("x"), Abort),
        (Retrying(never=(LookupError,)), KeyError("x"), Abort),
        (Retrying(never=(LookupError,)), TimeoutError(), Retry),
        (Retrying(only=(OSError,), never=(TimeoutError,)), TimeoutError(), Abort),
        (Retrying(only=(OSError,)), Snooze(1), Snooze),
        (Retrying(only=(ValueError,)), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), Abort),
    ],
)
def test_a_job_says_which_exceptions_it_retries(retrying: Retrying, error: Exception, kind: type[Outcome]) -> None:
    """Issue 4: only or never on named exceptions; what is deterministic stays so, an outcome stays what it says."""
    assert isinstance(classify(error, retrying), kind)
