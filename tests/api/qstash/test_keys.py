"""Signing keys that the database keeps are rotated over HTTP, by an admin (those that are a setting are not)."""

from __future__ import annotations

import httpx
import pytest
from qstash import AsyncQStash
from qstash.errors import QStashError

from todoku.api.qstash.routes import qstash_routes
from todoku.api.request_frame import RequestFrame
from todoku.api.server import Routing, context_of
from todoku.app import App
from todoku.engine.http import api_tokens
from todoku.store.audit import Signed


async def test_rotating_moves_next_to_current(url: str) -> None:
    box = App(url)
    box.migrate()
    app = RequestFrame(Routing(qstash_routes(context_of(box))))
    who = Signed("a test", "to see")
    admin, reader = (
        AsyncQStash(
            api_tokens.create(box.store, who, name=scope, scopes=[scope])[1], base_url="http://here", retry=False
        )
        for scope in ("admin", "operate")
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as wire:
        for client in (admin, reader):
            await client.http._client.aclose()
            client.http._client = wire
        before = await admin.signing_key.get()
        after = await admin.signing_key.rotate()
        assert after.current == before.next
        assert after.next not in (before.current, before.next)
        assert await admin.signing_key.get() == after
        with pytest.raises(QStashError, match="403"):  # who has the keys can sign as we do
            await reader.signing_key.get()
    box.close()
