"""How broker destinations are declared: what is wrong is said at once, and a client library is loaded by its use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import todoku
from todoku.core.settings import read_settings

MADE: dict[str, dict[str, Any]] = {
    "kafka": {"topic": "orders"},
    "nats": {},
    "pubsub": {"topic": "projects/shop/topics/orders"},
    "rabbitmq": {"exchange": "orders"},
    "redis": {"stream": "orders"},
    "sqs": {"queue_url": "https://sqs.example/1/orders"},
}
NAMES = {"kafka": "kafka:orders", "nats": "nats", "pubsub": "pubsub:orders", "rabbitmq": "rabbitmq:orders",
         "redis": "redis:orders", "sqs": "sqs:orders"}  # fmt: skip
LIBRARIES = ("aiokafka", "nats", "google.cloud", "aio_pika", "redis", "aiobotocore", "botocore")

each_kind = pytest.mark.parametrize("made", sorted(MADE))


@each_kind
def test_a_destination_is_called_after_its_address_or_as_one_likes(made: str) -> None:
    assert todoku.destination(made, **MADE[made]).name == NAMES[made]
    assert todoku.destination(made, **MADE[made], name="mine").name == "mine"
    assert isinstance(todoku.destination(made, **MADE[made]), todoku.Destination)


@each_kind
@pytest.mark.parametrize(
    ("option", "value"),
    [("send_timeout_ms", 0), ("send_timeout_ms", -1), ("max_bytes", 0), ("source", ""), ("nonsense", 1)],
)
def test_an_option_that_cannot_be_is_refused_by_its_name(made: str, option: str, value: object) -> None:
    with pytest.raises(todoku.InvalidSetting, match=option):
        todoku.destination(made, **MADE[made], **{option: value})


@pytest.mark.parametrize(
    ("made", "wrong", "field"),
    [
        ("redis", {"stream": "orders", "maxlen": 0}, "maxlen"),
        ("redis", {"stream": "orders", "replicas": -1}, "replicas"),
        ("sqs", {"queue_url": "orders"}, "queue_url"),
        ("pubsub", {"topic": "orders"}, "topic"),
        ("pubsub", {"topic": "projects//topics/orders"}, "topic"),
    ],
)
def test_an_address_that_cannot_be_is_refused(made: str, wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(todoku.InvalidSetting, match=f"{field} cannot be"):
        todoku.destination(made, **wrong)


@each_kind
def test_without_its_library_it_says_what_to_install(made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(todoku.destination(made, **MADE[made])).module  # type: ignore[attr-defined]
    monkeypatch.setattr("todoku.destinations.broker.find_spec", lambda name: None if name == module else object())
    with pytest.raises(todoku.InvalidSetting, match=rf'pip install "todoku\[{made}\]"'):
        todoku.destination(made, **MADE[made])


def test_no_client_library_is_loaded_before_it_is_used() -> None:
    """Declaring all of them loads none: an application that only publishes needs none of them."""
    declared = "".join(f"todoku.destination({kind!r}, **{options!r})\n" for kind, options in MADE.items())
    code = f"import sys, todoku\n{declared}print([name for name in {LIBRARIES!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() in ("[]", "['google.cloud']"), done.stdout  # a namespace, looked into to find its part


def test_the_time_limit_is_the_settings_unless_the_destination_has_its_own(tmp_path: Path) -> None:
    """BROKER_TIMEOUT_MS, as the first of the source documents calls it."""
    assert read_settings({"BROKER_TIMEOUT_MS": "700"}).send_timeout_ms == 700
    box = todoku.App(f"sqlite:///{tmp_path}/todoku.db")
    settings = type(box.settings)(database=box.settings.database, send_timeout_ms=700)
    box.outbox.settings = settings
    general, own = todoku.nats(name="general"), todoku.nats(name="own", send_timeout_ms=50)
    box.route("a", to=general)
    box.route("b", to=own)
    assert (general._seconds, own._seconds) == (0.7, 0.05)
