"""CloudEvents 1.0 in binary mode: what a consumer finds in the headers."""

from __future__ import annotations

import re

import pytest

from todoku.core.cloudevents import attributes, check_source, headers
from todoku.core.destination import Outgoing
from todoku.core.errors import InvalidSetting

MESSAGE = Outgoing(
    message_id="0197f0a0-0000-7000-8000-000000000001",
    idempotency_key="0197f0a0-0000-7000-8000-000000000001:kafka",
    topic="order.created",
    key="7",
    payload=b"{}",
    content_type="application/json",
    headers={"traceparent": "00-1-2-01", "tenant": "acme"},
    attempt=2,
    created_at=1_760_000_000.25,
)


def test_the_required_attributes_are_there_and_the_key_is_the_subject() -> None:
    assert attributes(MESSAGE, source="/shop") == {
        "specversion": "1.0",
        "id": MESSAGE.message_id,
        "source": "/shop",
        "type": "order.created",
        "time": "2025-10-09T08:53:20.250000Z",
        "subject": "7",
        "partitionkey": "7",
    }


def test_attributes_are_named_as_cloudevents_wants_names() -> None:
    assert all(re.fullmatch("[a-z0-9]{1,20}", name) for name in attributes(MESSAGE, source="/shop"))


def test_an_event_has_the_same_id_however_often_it_is_sent() -> None:
    """(source, id) is how a consumer of CloudEvents tells a duplicate."""
    again = Outgoing(**{name: getattr(MESSAGE, name) for name in MESSAGE.__struct_fields__} | {"attempt": 3})
    assert attributes(again, source="/shop") == attributes(MESSAGE, source="/shop")


def test_headers_have_the_publishers_own_the_trace_cloudevents_and_todokus() -> None:
    found = headers(MESSAGE, source="/shop", prefix="ce_")
    assert found["traceparent"] == "00-1-2-01"
    assert found["tenant"] == "acme"
    assert (found["ce_id"], found["ce_type"]) == (MESSAGE.message_id, "order.created")
    assert found["todoku-message-id"] == MESSAGE.message_id
    assert found["todoku-idempotency-key"] == MESSAGE.idempotency_key
    assert (found["todoku-topic"], found["todoku-key"]) == ("order.created", "7")


def test_a_publishers_header_cannot_pretend_to_be_todokus() -> None:
    forged = Outgoing(
        **{name: getattr(MESSAGE, name) for name in MESSAGE.__struct_fields__}
        | {"headers": {"todoku-message-id": "another", "ce-id": "another"}}
    )
    found = headers(forged, source="/shop", prefix="ce-")
    assert found["todoku-message-id"] == found["ce-id"] == MESSAGE.message_id


@pytest.mark.parametrize("source", ["", "two words", "a\n"])
def test_a_source_that_is_no_uri_reference_is_refused(source: str) -> None:
    with pytest.raises(InvalidSetting, match="source cannot be"):
        check_source(source)
