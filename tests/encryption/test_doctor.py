"""Doctor looks for what should be encrypted and is not, and whether the keys are right."""

from __future__ import annotations

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
    world.publish(topic="large", payload=lambda _: {"email": "x" * 20_000})
    (personal,) = found(box, "personal data")
    assert personal.level == "warn"
    assert personal.text == "user.created is not encrypted, and has fields that look like personal data: email, 氏名"
    assert "encrypted=True" in personal.todo


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
