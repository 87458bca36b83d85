"""What the Upstash-* headers ask for (webhooks: request headers of the wire API). Every refusal names its header."""

from __future__ import annotations

import string
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from todoku.core.errors import InvalidMessage
from todoku.core.http_request import FlowControl, HttpRequest
from todoku.core.schedule import Cron
from todoku.core.upstash_headers import UpstashOptions, collect_fields, header_name, parse_options

NOW = datetime(2026, 11, 16, 6, 0, tzinfo=UTC)


def read(**headers: str) -> UpstashOptions:
    """Headers by names with underscores: Upstash_Delay is Upstash-Delay."""
    return parse_options(
        collect_fields((name.replace("_", "-"), value) for name, value in headers.items()), now=NOW, scheduled=True
    )


# --------------------------------------------------------------------------------------------- what is sent


def test_without_headers_it_is_a_post_with_three_retries() -> None:
    assert read() == UpstashOptions(request=HttpRequest(url="", method="POST", retries=3))


@pytest.mark.parametrize("method", ["GET", "post", "Put", "PATCH", "DELETE"])
def test_the_method_is_the_receivers(method: str) -> None:
    assert read(Upstash_Method=method).request.method == method.upper()


def test_forwarded_headers_lose_their_prefix_and_have_go_s_spelling() -> None:
    found = read(upstash_forward_test_header="a", Upstash_Forward_X_API_key="b", Content_Type="application/json")
    assert found.request.headers == {"Test-Header": "a", "X-Api-Key": "b", "Content-Type": "application/json"}


def test_a_content_type_that_is_forwarded_by_name_wins() -> None:
    found = read(Content_Type="application/json", Upstash_Forward_Content_Type="text/plain")
    assert found.request.headers == {"Content-Type": "text/plain"}


def test_header_forward_takes_all_but_what_was_meant_for_us() -> None:
    found = read(
        Upstash_Header_Forward="true", Authorization="Bearer secret", Host="here", X_Own="1", User_Agent="me",
        Content_Length="7", Upstash_Telemetry_Sdk="x", Connection="close",
    )  # fmt: skip
    assert found.request.headers == {"X-Own": "1", "User-Agent": "me"}


@pytest.mark.parametrize("name", ["Host", "Content-Length", "Transfer-Encoding", "Connection", "Proxy-Authorization",
                                  "Upstash-Signature", "Webhook-Signature", "webhook-id"])  # fmt: skip
def test_what_only_the_sender_may_say_is_not_forwarded(name: str) -> None:
    with pytest.raises(InvalidMessage, match=f"(?i)Upstash-Forward-{name}"):
        parse_options(collect_fields([(f"Upstash-Forward-{name}", "x")]), now=NOW)


def test_authorization_may_be_forwarded_by_name() -> None:
    assert read(Upstash_Forward_Authorization="Bearer x").request.headers == {"Authorization": "Bearer x"}


def test_telemetry_is_ignored_and_never_forwarded() -> None:
    assert read(Upstash_Telemetry_Sdk="js", Upstash_Workflow_Init="true") == read()


def test_a_callback_has_options_and_headers_of_its_own() -> None:
    found = read(
        Upstash_Callback="https://example.com/done", Upstash_Callback_Method="PUT", Upstash_Callback_Retries="0",
        Upstash_Callback_Timeout="5s", Upstash_Callback_Delay="1m", Upstash_Callback_Retry_Delay="1000 * retried",
        Upstash_Callback_Forward_One="1", upstash_callback_two="2", Upstash_Retries="7",
    ).request  # fmt: skip
    callback = found.callback
    assert found.retries == 7
    assert found.failure_callback is None
    assert callback is not None
    assert (callback.url, callback.method, callback.retries) == ("https://example.com/done", "PUT", 0)
    assert (callback.timeout, callback.delay, callback.retry_delay) == (5, 60, "1000 * retried")
    assert callback.headers == {"One": "1", "Two": "2"}


def test_a_failure_callback_is_not_a_callback() -> None:
    found = read(Upstash_Failure_Callback="https://example.com/failed", Upstash_Failure_Callback_Retries="1").request
    assert found.callback is None
    assert found.failure_callback is not None
    assert (found.failure_callback.url, found.failure_callback.retries) == ("https://example.com/failed", 1)


@pytest.mark.parametrize(
    ("value", "flow"),
    [
        ("parallelism=3, rate=4, period=2s", FlowControl(key="k", parallelism=3, rate=4, period=2)),
        ("parallelism=3,rate=4,period=2", FlowControl(key="k", parallelism=3, rate=4, period=2)),
        ("rate=23, period=1h30m3s", FlowControl(key="k", rate=23, period=5403)),
        ("rate=1", FlowControl(key="k", rate=1)),
        (" Parallelism = 5 ", FlowControl(key="k", parallelism=5)),
    ],
)
def test_flow_control(value: str, flow: FlowControl) -> None:
    assert read(Upstash_Flow_Control_Key="k", Upstash_Flow_Control_Value=value).request.flow == flow


def test_labels_and_what_is_redacted() -> None:
    found = read(Upstash_Label="a, b,,a", Upstash_Redact_Fields="body, header[authorization],header").request
    assert found.labels == ("a", "b")
    assert found.redact == ("body", "header[Authorization]", "header")


# -------------------------------------------------------------------------------------------------- when


@pytest.mark.parametrize(("text", "seconds"), [("10s", 10), ("1m", 60), ("1d10h", 122_400), ("0s", 0), ("15", 15)])
def test_delay(text: str, seconds: float) -> None:
    assert read(Upstash_Delay=text).delay == seconds


def test_not_before_wins_over_delay() -> None:
    found = read(Upstash_Delay="10s", Upstash_Not_Before="1794800000")
    assert (found.at, found.delay) == (datetime.fromtimestamp(1_794_800_000, UTC), 0)


def test_cron_in_a_time_zone() -> None:
    assert read(Upstash_Cron="*/10 * * * * ").when == Cron("*/10 * * * *", "UTC")
    assert read(Upstash_Cron="CRON_TZ=Asia/Tokyo 0 9 * * *").when == Cron("0 9 * * *", "Asia/Tokyo")


@pytest.mark.parametrize("true", ["true", "True", "1"])
def test_both_clients_say_content_based_deduplication_in_their_way(true: str) -> None:
    assert read(Upstash_Content_Based_Deduplication=true).by_content
    assert not read(Upstash_Content_Based_Deduplication="False").by_content


def test_options_come_as_query_parameters_too_and_headers_win() -> None:
    found = collect_fields(
        [("upstash-delay", "1s")], [("upstash-delay", "2s"), ("upstash-retries", "0"), ("other", "x")]
    )
    assert found == {"upstash-delay": "1s", "upstash-retries": "0"}


# --------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Upstash-Method", "TRACE"),
        ("Upstash-Method", ""),
        ("Upstash-Retries", "-1"),
        ("Upstash-Retries", "3.5"),
        ("Upstash-Retries", "1001"),
        ("Upstash-Retries", "٣"),
        ("Upstash-Retries", "9" * 5000),
        ("Upstash-Retry-Delay", "__import__('os')"),
        ("Upstash-Retry-Delay", "1000 *"),
        ("Upstash-Delay", "soon"),
        ("Upstash-Delay", "-5s"),
        ("Upstash-Delay", "2y"),
        ("Upstash-Delay", "400d"),
        ("Upstash-Timeout", "0s"),
        ("Upstash-Timeout", "2d"),
        ("Upstash-Not-Before", "tomorrow"),
        ("Upstash-Not-Before", "9999999999999"),
        ("Upstash-Not-Before", "99999999999"),
        ("Upstash-Cron", "every day"),
        ("Upstash-Cron", "61 * * * *"),
        ("Upstash-Cron", "CRON_TZ=Mars/Olympus * * * * *"),
        ("Upstash-Callback", "not a url"),
        ("Upstash-Failure-Callback", "ftp://example.com"),
        ("Upstash-Deduplication-Id", ""),
        ("Upstash-Deduplication-Id", "x" * 513),
        ("Upstash-Content-Based-Deduplication", "maybe"),
        ("Upstash-Flow-Control-Key", "a/b"),
        ("Upstash-Schedule-Id", ""),
        ("Upstash-Redact-Fields", "everything"),
        ("Upstash-Redact-Fields", "header[a b]"),
        ("Upstash-Label", ",".join(map(str, range(21)))),
        ("Todoku-Deduplicated-For", "0"),
    ],
)
def test_a_refusal_names_the_header(header: str, value: str) -> None:
    with pytest.raises(InvalidMessage, match=header):
        parse_options(collect_fields([(header, value)]), now=NOW, scheduled=True)


@pytest.mark.parametrize("value", ["", "rate=0", "rate=x", "parallelism=-1", "speed=3", "rate=1,period=8d", "period=2s",
                                   "rate=1, period=500ms"])  # fmt: skip
def test_a_flow_key_without_a_usable_value_is_refused(value: str) -> None:
    with pytest.raises(InvalidMessage, match="Upstash-Flow-Control-Value"):
        read(Upstash_Flow_Control_Key="k", Upstash_Flow_Control_Value=value)


def test_a_flow_value_without_its_key_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="Upstash-Flow-Control-Key"):
        read(Upstash_Flow_Control_Value="rate=1")


@pytest.mark.parametrize("bad", ["a\r\nX: b", "a\nb", "a\0b", "a\x7fb"])
@pytest.mark.parametrize("name", ["Upstash-Forward-X", "Upstash-Deduplication-Id", "Content-Type", "Upstash-Label"])
def test_no_control_characters_in_any_header(name: str, bad: str) -> None:
    with pytest.raises(InvalidMessage, match=name):
        parse_options(collect_fields([(name, bad)]), now=NOW)


def test_a_name_that_is_no_token_is_not_forwarded() -> None:
    with pytest.raises(InvalidMessage, match="called"):
        parse_options(collect_fields([("Upstash-Forward-a b", "x")]), now=NOW)


# ------------------------------------------------------------------------------------------- any input

_OPTIONS = st.sampled_from([
    "method", "timeout", "retries", "retry-delay", "delay", "not-before", "deduplication-id", "callback", "label",
    "content-based-deduplication", "failure-callback", "flow-control-key", "flow-control-value", "redact-fields",
    "cron", "schedule-id", "forward-x", "header-forward", "callback-retries", "callback-forward-y", "telemetry-sdk",
]).map("upstash-{}".format)  # fmt: skip
_VALUES = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["10s", "true", "3", "https://example.com", "rate=1", "a,b", "0 9 * * *", "pow(2, retried)", "k"]),
)


@given(st.lists(st.tuples(st.one_of(_OPTIONS, st.text(max_size=20)), _VALUES), max_size=12))
def test_no_headers_make_it_fall_over_and_what_it_makes_is_sane(headers: list[tuple[str, str]]) -> None:
    try:
        found = parse_options(collect_fields(headers), now=NOW)
    except InvalidMessage:
        return
    request = found.request
    assert 0 <= request.retries <= 1000
    assert request.timeout is None or 0 < request.timeout <= 86_400
    assert found.delay >= 0
    for name, value in request.headers.items():
        assert (
            header_name(name.lower()) == name or not name.isascii() or any(c not in string.ascii_letters for c in name)
        )
        assert not any(character in name + value for character in "\r\n\0")
        assert not name.lower().startswith(("upstash-", "webhook-"))


@given(st.lists(st.tuples(_OPTIONS, _VALUES), max_size=12, unique_by=lambda pair: pair[0]))
def test_the_case_of_names_and_their_order_mean_nothing(headers: list[tuple[str, str]]) -> None:
    def outcome(given: list[tuple[str, str]]) -> UpstashOptions | None:
        try:
            return parse_options(collect_fields(given), now=NOW)
        except InvalidMessage:
            return None

    assert outcome(headers) == outcome([(name.title(), value) for name, value in reversed(headers)])
