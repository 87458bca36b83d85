"""A receiver, and a sender that may send to this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.destinations.http.receiving import Receiver, receiving
from todoku.core.destination import Outgoing
from todoku.core.http_request import HTTP, HttpRequest, encode_request
from todoku.core.outcome import Outcome
from todoku.core.settings import Settings
from todoku.core.signature import SigningKeys
from todoku.destinations.http_sender import Requests

KEYS = SigningKeys(current="sig_" + "c" * 28, next="sig_" + "n" * 28)
MESSAGE = "01920000-0000-7000-8000-000000000001"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """One that answers 200 until it is told otherwise."""
    with receiving() as made:
        yield made


def settings(**given: Any) -> Settings:
    """Of a sender that may send to this machine."""
    return msgspec.structs.replace(Settings(http_loopback=True), **given)


def outgoing(
    url: str, body: bytes = b"{}", *, attempt: int = 1, trace: dict[str, str] | None = None, **request: Any
) -> Outgoing:
    """A request to `url` as its sender sees it."""
    made = HttpRequest(url=url, **request)
    return Outgoing(
        message_id=MESSAGE, idempotency_key=f"{MESSAGE}:x", topic="http.request", key=None, payload=body,
        content_type=made.headers.get("Content-Type", "application/octet-stream"),
        headers={**(trace or {}), HTTP: encode_request(made)}, attempt=attempt, created_at=1.7e9,
    )  # fmt: skip


def send(*messages: Outgoing, look_up: Any = None, chance: float = 0.0, **given: Any) -> list[Outcome]:
    """One attempt of each, one after the other, by one sender."""

    async def run() -> list[Outcome]:
        requests = Requests(settings(**given), lambda: KEYS, chance=lambda: chance, look_up=look_up)
        try:
            return [outcome for message in messages for outcome in await requests.send([message])]
        finally:
            await requests.aclose()

    return asyncio.run(run())
