"""Requests on a world's store: published as the HTTP API does it, and run as a worker would."""

from __future__ import annotations

from uuid import UUID

import msgspec

from tests.support.world import World
from todoku.core.decision import SUCCEEDED, Settlement
from todoku.core.http_request import HttpRequest
from todoku.core.message import Claimed
from todoku.core.outcome import Response
from todoku.core.status import Status
from todoku.engine.http.publish_requests import CheckedRequest, RequestPublisher
from todoku.engine.http.request_draft import Posting
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.outbox import Outbox, Policy

URL = "https://shop.example/hook"


class Requesting:
    """Publishes, claims and settles requests."""

    def __init__(self, world: World, **settings: object) -> None:
        self.world = world
        self.outbox = Outbox(
            world.store, world.store.database, world.settings(**settings), Policy(), Telemetry(span_ratio=0.0)
        )
        self.posts = RequestPublisher(self.outbox)
        self._worker: UUID | None = None

    def post(self, url: str = URL, *, body: bytes = b"{}", posting: Posting | None = None, **request: object) -> UUID:
        """Publish one request to a URL and return its message's id."""
        made = msgspec.structs.replace(HttpRequest(url=url), **request)
        (published,) = self.posts.put([CheckedRequest(request=made, body=body, posting=posting or Posting())])
        return published.sent[0].message.id

    def claim(self, number: int = 100) -> list[Claimed]:
        """Take what is due, lanes too."""
        if self._worker is None:
            self._worker = self.world.worker(lease=86_400.0)
        return self.world.claim(self._worker, number) + self.world.claim_lanes(self._worker)

    def run(self, settlement: Settlement = SUCCEEDED) -> list[Claimed]:
        """Take what is due and settle all of it the same way."""
        claims = self.claim()
        self.world.settle(claims, settlement)
        return claims


def answered(status: int, body: bytes = b"no", *, dead: bool = False) -> Settlement:
    """An attempt that the receiver answered with a failure."""
    return Settlement(
        status=Status.ABORTED if dead else Status.FAILED,
        reason=f"HTTP_{status}",
        error=f"the receiver answered {status}",
        response=Response(status, {"Content-Type": "text/plain"}, body),
    )
