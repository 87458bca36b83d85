"""Doctor looks for what should be encrypted and is not, and whether the keys are right."""

from __future__ import annotations

import logging
from uuid import uuid4

import pytest

import todoku
from tests.encryption.conftest import Boxes
from tests.support.world import World
from todoku.engine.diagnostics.doctor import Finding, examine


def found(box: todoku.App, what: str) -> list[Finding]:
    return [finding for finding in examine(box.store, box.settings) if finding.what == what]


def test_topics_with_fields_that_look_personal_are_listed_by_name_and_without_a_value(
    box: todoku.App, world: World
) -> None:
    """Issue 4: only names of fields, and only of what is not encrypted."""

    @box.job(encrypted=True)
    def welcome(email: str) -> None: ...

    welcome.enqueue("ada@example.org")
    world.publish(topic="user.created", payload=lambda _: {"profile": {"email": "ada@example.org", "氏名": "Ada"}})
    world.publish(topic="order.created", payload=lambda _: {"amount": 7})
    (personal,) = found(box, "personal data")
    assert personal.level == "warn"
    assert personal.text == "user.created is not encrypted, and has fields that look like personal data: email, 氏名"
    assert "encrypted=True" in personal.todo


def test_personal_fields_are_found_inside_large_payloads(box: todoku.App, world: World) -> None:
    """S1-41: one of each topic is read, and no value of it is shown."""
    rows = [{"amount": number, "contact": {"phone": "555-0100"}} for number in range(3000)]
    world.publish(3, topic="export", payload=lambda _: {"rows": rows})
    world.publish(topic="picture", payload=lambda _: {"email": "x" * 20_000})
    assert [finding.text for finding in found(box, "personal data")] == [
        "export is not encrypted, and has fields that look like personal data: phone",
        "picture is not encrypted, and has fields that look like personal data: email",
    ]
    assert not any("555-0100" in finding.text for finding in examine(box.store, box.settings))


def test_topics_with_large_payloads_are_listed_with_their_number_and_size(box: todoku.App, world: World) -> None:
    """S1-41: small payloads; encrypted ones count too."""

    @box.job(encrypted=True)
    def archive(document: str) -> None: ...

    archive.enqueue("x" * 70_000)
    world.publish(2, topic="export", payload=lambda _: {"rows": "x" * 100_000})
    world.publish(topic="export", payload=lambda _: {"rows": "x"})
    world.publish(topic="order.created", payload=lambda _: {"text": "x" * 60_000})
    large = found(box, "large payloads")
    assert [finding.text for finding in large] == [
        "archive: 1 of the newest 5 messages have more than 64 KiB, the largest 68 KiB",
        "export: 2 of the newest 5 messages have more than 64 KiB, the largest 97 KiB",
    ]
    assert {finding.level for finding in large} == {"warn"}
    assert "send its id" in large[0].todo


def test_a_publish_of_more_than_64_kib_is_warned_of_once_for_each_topic(
    box: todoku.App, caplog: pytest.LogCaptureFixture
) -> None:
    """S1-41: where it is published, and without its content."""
    caplog.set_level(logging.WARNING, "todoku")
    topics = [f"document.{uuid4().hex}" for _ in range(2)]
    for topic in topics:
        box.route(topic, to=todoku.log(topic))
        box.publish(topic, {"text": "x" * 65_000}, tx=None)
        assert caplog.records == []
    for topic in (*topics, *topics):
        box.publish(topic, {"text": "hunter2 " * 9000}, tx=None)
    told = [record.getMessage() for record in caplog.records]
    assert [topic for topic in topics if topic in told[topics.index(topic)]] == topics
    assert len(told) == 2
    assert all("LARGE_PAYLOAD" in line and "bytes=72011" in line and "hunter2" not in line for line in told)


def test_many_fields_are_cut(box: todoku.App, world: World) -> None:
    world.publish(topic="form", payload=lambda _: {f"phone{number}": 0 for number in range(10)})
    (personal,) = found(box, "personal data")
    assert personal.text.endswith("phone7 and 2 more")


def test_the_keys_are_right_or_old_or_not_here(boxes: Boxes, old: str, new: str) -> None:
    first = boxes(old)
    assert found(first, "encryption") == []

    @first.job(encrypted=True)
    def welcome(email: str) -> None: ...

    welcome.enqueue("ada@example.org")
    levels = {name: [(finding.level, finding.text) for finding in found(box, "encryption")]
              for name, box in {"same": first, "both": boxes(new, old), "none": boxes()}.items()}  # fmt: skip
    assert levels == {
        "same": [("ok", "every data key is wrapped by the current master key")],
        "both": [("warn", "1 data keys are wrapped by an older master key")],
        "none": [("warn", "data keys are wrapped by 2026-05, which is not configured here")],
    }
