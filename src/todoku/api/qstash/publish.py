"""`/v2/publish` and `/v2/enqueue`: a raw body with Upstash-* headers; `/v2/batch`: many messages as JSON.

`/v2/trigger` and `/v2/batch/trigger` start workflow runs, with headers that todoku adds.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from todoku.api.body import decode_json, read_body
from todoku.api.problem import Refused
from todoku.api.qstash.answers import Accepted, json
from todoku.api.qstash.parsing import caller_ip, option_fields, raw_query, raw_rest, unescape
from todoku.api.request_context import RequestContext
from todoku.api.request_frame import request_id
from todoku.core.address import Address, Group, Url, address
from todoku.core.duration import milliseconds
from todoku.core.errors import InvalidMessage
from todoku.core.upstash_headers import UpstashOptions, collect_fields, parse_options
from todoku.core.workflow_run import trigger_fields
from todoku.engine.http.names import check_name
from todoku.engine.http.publish_requests import CheckedRequest, PublishedRequest, RequestPublisher
from todoku.engine.http.request_draft import DEDUPLICATED_FOR, Posting
from todoku.engine.observability.tracing import trace_headers
from todoku.engine.outbox import new_id
from todoku.store.http_runs import RunFilter

CORRELATION: Final = "x-correlation-id"
MOST_IN_BATCH: Final = 1000
_BATCH_BYTES: Final = 16
"""Largest size of a batch, as a multiple of the largest body."""

_MOST_QUOTES: Final = 300 * MOST_IN_BATCH
"""Two for each string of a batch. A header is two strings, and each costs as much as a kilobyte of a body."""

_PARSED_AT_ONCE: Final = 4
"""Messages of a batch that are parsed before the event loop serves other requests."""


class BatchItem(msgspec.Struct, frozen=True):
    """One message of a batch."""

    destination: str
    headers: dict[str, str] | None = None
    body: msgspec.Raw = msgspec.Raw(b"null")
    """A string, or null. For a workflow run any JSON, which its SDK sends: it is forwarded as it came."""
    queue: str | None = None


class PublishEndpoints:
    """The endpoints that publish messages."""

    def __init__(self, context: RequestContext, posts: RequestPublisher) -> None:
        self._context, self._posts = context, posts

    async def publish(self, request: Request) -> Response:
        """Publishes a message to a URL or a URL group."""
        return await self._one(request, raw_rest(request, "/v2/publish/"), queue=None)

    async def enqueue(self, request: Request) -> Response:
        """Publishes a message through a queue."""
        queue, _, rest = raw_rest(request, "/v2/enqueue/").partition("/")
        return await self._one(request, rest, queue=unescape(queue))

    async def trigger(self, request: Request) -> Response:
        """Starts a run of the workflow at a URL."""
        to = _workflow(raw_rest(request, "/v2/trigger/"), raw_query(request))
        post = self._post(request, _triggering(option_fields(request), to), to, None)
        body = await read_body(request, limit=self._context.settings.max_payload_bytes)
        (started,) = await self._start([msgspec.structs.replace(post, body=body)])
        return json(started)

    async def trigger_many(self, request: Request) -> Response:
        """Starts many runs; either all or none."""
        return json(await self._start(await self._items(request, is_trigger=True)))

    async def batch(self, request: Request) -> Response:
        """Publishes many messages; either all or none are stored."""
        published = await self._posts.publish(self._context.group_commit, await self._items(request))
        return json([response_body(each) for each in published])

    async def _start(self, posts: list[CheckedRequest]) -> list[dict[str, Any]]:
        await self._posts.publish(self._context.group_commit, posts)
        ids = [post.run.id for post in posts if post.run is not None]
        runs = await asyncio.to_thread(self._context.store.http_runs.find, RunFilter(ids=tuple(ids)), limit=len(ids))
        created = {run.id: milliseconds(run.created_at) for run in runs}
        return [{"workflowRunId": id, "workflowCreatedAt": created[id]} for id in ids if id in created]

    async def _items(self, request: Request, *, is_trigger: bool = False) -> list[CheckedRequest]:
        limit = self._context.settings.max_payload_bytes * _BATCH_BYTES
        body = await read_body(request, limit=limit)
        if body.count(b'"') - body.count(b'\\"') > _MOST_QUOTES:
            raise Refused(413, "the batch contains too many strings", hint="send it in parts, or with fewer headers")
        items = decode_json(body, list[BatchItem])
        if len(items) > MOST_IN_BATCH:
            raise InvalidMessage(f"a batch cannot have {len(items)} messages", hint=f"at most {MOST_IN_BATCH}")
        posts: list[CheckedRequest] = []
        for number, item in enumerate(items):
            posts.append(self._item(request, number, item, is_trigger=is_trigger))
            if number % _PARSED_AT_ONCE == 0:
                await asyncio.sleep(0)  # lets the event loop serve other requests
        return posts

    async def _one(self, request: Request, raw: str, *, queue: str | None) -> Response:
        given = option_fields(request)
        post = self._post(request, given, address(raw, raw_query(request)), queue)
        body = await read_body(request, limit=self._context.settings.max_payload_bytes)
        (published,) = await self._posts.publish(self._context.group_commit, [msgspec.structs.replace(post, body=body)])
        is_duplicate = all(sent.message.duplicate for sent in published.sent)
        return json(response_body(published), 202 if is_duplicate else 200)

    def _item(self, request: Request, number: int, item: BatchItem, *, is_trigger: bool) -> CheckedRequest:
        try:
            to, given = address(item.destination), collect_fields((item.headers or {}).items())
            if is_trigger:
                given = _triggering(given, to := _workflow(item.destination))
            post = self._post(request, given, to, item.queue)
            body = _body(bytes(item.body), of_run=post.run is not None)
        except InvalidMessage as error:
            raise InvalidMessage(f"message {number} of the batch: {error}") from None
        return msgspec.structs.replace(post, body=body)

    def _post(self, request: Request, given: dict[str, str], to: Address, queue: str | None) -> CheckedRequest:
        options = parse_options(given, now=datetime.now(UTC), caller_ip=caller_ip(request))
        return build_request(options, to, queue, {**trace_headers(request.headers), CORRELATION: request_id(request)})


def _workflow(destination: str, query: str = "") -> Url:
    if isinstance(to := address(destination, query), Group):
        raise InvalidMessage("a URL group has no workflow", hint="trigger the URL that serves the workflow")
    return to


def _triggering(given: dict[str, str], to: Url) -> dict[str, str]:
    return trigger_fields(given, to.url, f"wfr_{new_id().hex}")


def _body(raw: bytes, *, of_run: bool) -> bytes:
    if raw.startswith(b'"'):
        return msgspec.json.decode(raw, type=str).encode()
    if not of_run and raw != b"null":
        raise InvalidMessage("the body is not a string", hint="send JSON as a string")
    return b"" if raw == b"null" else raw


def build_request(options: UpstashOptions, to: Address, queue: str | None, own: dict[str, str]) -> CheckedRequest:
    """Returns the request without its body. `own`: headers of the message itself, which are not sent."""
    place = {"url": "", "group": to.name} if isinstance(to, Group) else {"url": to.url}
    named = None if queue is None else check_name(queue, "queue")
    return CheckedRequest(
        request=msgspec.structs.replace(options.request, queue=named, **place),
        posting=Posting(
            delay=options.delay,
            at=options.at,
            deduplication_id=options.deduplication_id,
            deduplicated_for=options.deduplicated_for or DEDUPLICATED_FOR,
            trace=own,
        ),
        by_content=options.by_content,
        run=options.run,
    )


def response_body(published: PublishedRequest) -> Accepted | list[Accepted]:
    """Returns the accepted message; a list for a URL group."""
    accepted = [
        Accepted(message_id=str(sent.message.id), url=sent.url, deduplicated=sent.message.duplicate)
        for sent in published.sent
    ]
    return accepted if published.to_group else accepted[0]
