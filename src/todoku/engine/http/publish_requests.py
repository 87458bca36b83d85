"""Publishes requests: expands a URL group to a message per endpoint, creates missing queues and flow keys, and stores
the drafts. The limits of queues and keys are cached for a few seconds, so that the usual publish costs only its commit.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec
from cachetools import TTLCache

from todoku.core.errors import InvalidMessage
from todoku.core.http_request import FlowControl, HttpRequest
from todoku.core.identity import key_hash
from todoku.core.message import Draft, Message
from todoku.core.workflow_run import RunOptions
from todoku.engine.http import flow_control, request_queues
from todoku.engine.http.names import check_name
from todoku.engine.http.request_draft import Posting, content_id, request_draft
from todoku.engine.http.run_publisher import RunPost, RunPublisher
from todoku.engine.http.url_groups import open_group
from todoku.engine.observability.tracing import inject
from todoku.engine.outbox import Outbox, new_id
from todoku.store.url_groups import GroupRow

CACHE_SECONDS: Final = 5.0
"""Seconds for which the parallelism of a queue and the limits of a flow key are cached."""

_MOST: Final = 10_000
"""The largest number of cached queues, and of cached flow keys."""

_FEW: Final = 8
"""The most drafts that are built in the event loop; more would delay other requests and go to a thread."""

ENDPOINT_DISABLED: Final = "ENDPOINT_DISABLED"


class CheckedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed and checked request. One to a URL group has `request.group` and an empty `url`."""

    request: HttpRequest
    body: bytes = b""
    posting: Posting = Posting()
    by_content: bool = False
    """Deduplicate by URL, headers and body, unless there is a deduplication id."""
    run: RunOptions | None = None
    """The workflow run that the request starts or continues."""


class SentMessage(msgspec.Struct, frozen=True):
    """A stored message (or the earlier one, if it is a duplicate) and its URL."""

    message: Message
    url: str


class PublishedRequest(msgspec.Struct, frozen=True):
    """The messages of one published request: one, or one for each endpoint of its group."""

    sent: tuple[SentMessage, ...]
    to_group: bool


class DraftStore(Protocol):
    """Stores the drafts of a call, all or none: `GroupCommit`."""

    async def put(self, drafts: list[Draft]) -> list[Message]:
        """Stores the drafts, or finds the messages of their idempotency keys. Returns messages in the given order."""


class RequestPublisher:
    """Publishes the requests of one process. Thread-safe."""

    def __init__(self, outbox: Outbox, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._outbox = outbox
        self._runs = RunPublisher(outbox)
        self._lock = threading.Lock()  # reading a TTLCache changes it, too
        self._queues: TTLCache[str, int] = TTLCache(_MOST, CACHE_SECONDS, timer=monotonic)
        self._flows: TTLCache[FlowControl, bool] = TTLCache(_MOST, CACHE_SECONDS, timer=monotonic)

    async def publish(self, group_commit: DraftStore, posts: Sequence[CheckedRequest]) -> list[PublishedRequest]:
        """Publishes the requests of one call together: all, or none with an error that names the wrong one."""
        if not posts:
            return []
        if any(post.run is not None for post in posts):
            return await asyncio.to_thread(self._put_runs, posts)
        parallelism = self._cached_parallelism(posts)
        if parallelism is not None and len(posts) <= _FEW:  # no query and little work: no thread needed
            built = self._drafts(posts, (), parallelism)
        else:
            built = await asyncio.to_thread(self.drafts, posts)
        messages = await group_commit.put([draft for drafts in built for draft, _ in drafts])
        return _published(posts, built, messages)

    def put(self, posts: Sequence[CheckedRequest]) -> list[PublishedRequest]:
        """Like `publish`, for blocking code, in its own transaction."""
        if not posts:
            return []
        if any(post.run is not None for post in posts):
            return self._put_runs(posts)
        built = self.drafts(posts)
        drafts = [draft for each in built for draft, _ in each]
        return _published(posts, built, self._outbox.put(drafts, None, twin="publish(…)"))

    def drafts(self, posts: Sequence[CheckedRequest]) -> list[list[tuple[Draft, str]]]:
        """Returns the drafts of each request with their URLs; reads queues, flow keys and groups. InvalidMessage."""
        parallelism: dict[str, int] = {}
        for post in posts:
            self._ensure(post.request, parallelism)
        names = sorted({post.request.group for post in posts if post.request.group is not None})
        groups = self._outbox.store.url_groups.all(names=names) if names else ()
        masters = self._outbox.sealer.masters
        return self._drafts(posts, [open_group(group, masters) for group in groups], parallelism)

    def forget(self, queue: str | None = None) -> None:
        """Clears the cache of a queue (None: all), because this process has changed it."""
        with self._lock:
            if queue is None:
                self._queues.clear()
                self._flows.clear()
            else:
                self._queues.pop(queue, None)

    # ------------------------------------------------------------------------------------------ private

    def _put_runs(self, posts: Sequence[CheckedRequest]) -> list[PublishedRequest]:
        """Publishes what starts and continues workflow runs, and the other requests of the same call."""
        plain = [post for post in posts if post.run is None]
        built = self.drafts(plain)
        of_runs = [_run_post(post, post.run) for post in posts if post.run is not None]
        for post in of_runs:
            self._ensure(post.request, {})
        messages, others = self._runs.put(of_runs, [draft for each in built for draft, _ in each])
        rest, runs = iter(_published(plain, built, others)), iter(messages)
        return [
            next(rest) if post.run is None else PublishedRequest((SentMessage(next(runs), post.request.url),), False)
            for post in posts
        ]

    def _cached_parallelism(self, posts: Sequence[CheckedRequest]) -> dict[str, int] | None:
        """Returns the parallelism of each queue of these requests; None if something must be read first."""
        found: dict[str, int] = {}
        for request in (post.request for post in posts):
            if request.group is not None:
                return None
            if request.queue is not None:
                if (parallelism := self._parallelism(request.queue)) is None:
                    return None
                found[request.queue] = parallelism
            elif request.flow is not None and not self._is_known(request.flow):
                return None
        return found

    def _ensure(self, request: HttpRequest, parallelism: dict[str, int]) -> None:
        store = self._outbox.store
        if request.queue is not None:  # the queue decides; a flow key is only recorded
            if (known := parallelism.get(request.queue) or self._parallelism(request.queue)) is None:
                known = request_queues.ensure(store, request.queue)
                with self._lock:
                    self._queues[request.queue] = known
            parallelism[request.queue] = known
        elif request.flow is not None and not self._is_known(request.flow):
            flow_control.ensure(store, request.flow)
            with self._lock:
                self._flows[request.flow] = True

    def _parallelism(self, queue: str) -> int | None:
        with self._lock:
            return self._queues.get(queue)

    def _is_known(self, flow: FlowControl) -> bool:
        with self._lock:
            return flow in self._flows

    def _drafts(
        self, posts: Sequence[CheckedRequest], groups: Sequence[GroupRow], parallelism: dict[str, int]
    ) -> list[list[tuple[Draft, str]]]:
        found = {group.name: group for group in groups}
        return [
            [(self._draft(one, parallelism), one.request.url) for one in expand_group(post, found)] for post in posts
        ]

    def _draft(self, post: CheckedRequest, parallelism: dict[str, int]) -> Draft:
        outbox, request, posting = self._outbox, post.request, post.posting
        if post.by_content and posting.deduplication_id is None:
            id = outbox.sealer.key_digest(content_id(request, post.body))
            posting = msgspec.structs.replace(posting, deduplication_id=id)
        if request.flow is not None:
            flow_control.check(request.flow)
        if request.queue is not None and not posting.fifo:
            posting = msgspec.structs.replace(posting, fifo=parallelism[request.queue] == 1)
        trace = inject(posting.trace)
        if trace is not None and trace is not posting.trace:
            posting = msgspec.structs.replace(posting, trace=dict(trace))
        most = outbox.settings.max_payload_bytes
        draft = request_draft(new_id(), request, post.body, posting, max_payload_bytes=most)
        return outbox.sealer.seal_request(draft)


def _run_post(post: CheckedRequest, run: RunOptions) -> RunPost:
    request = post.request
    if request.group is not None or request.queue is not None:
        hint = "publish to the URL of the workflow; limit runs by a flow control key"
        raise InvalidMessage("a workflow run cannot go to a URL group or through a queue", hint=hint)
    if request.flow is not None:
        flow_control.check(request.flow)
    return RunPost(run=run, request=request, body=post.body, posting=post.posting)


def expand_group(post: CheckedRequest, groups: Mapping[str, GroupRow]) -> list[CheckedRequest]:
    """Returns one request for each endpoint of its group, or the request itself. InvalidMessage: an empty group."""
    name = post.request.group
    if name is None:
        return [post]
    group = groups.get(check_name(name, "URL group"))
    if group is None or not group.endpoints:
        hint = f"add endpoints: POST /v2/topics/{name}/endpoints"
        raise InvalidMessage(f"the URL group {name!r} has no endpoints", hint=hint)
    return [
        CheckedRequest(
            request=msgspec.structs.replace(
                post.request,
                url=endpoint.url,
                endpoint=endpoint.name,
                headers={**group.headers, **post.request.headers},
            ),
            body=post.body,
            posting=_endpoint_posting(post.posting, endpoint.url, enabled=endpoint.enabled),
            by_content=post.by_content,
        )
        for endpoint in group.endpoints
    ]


def _endpoint_posting(posting: Posting, url: str, *, enabled: bool) -> Posting:
    """Returns the posting for one endpoint; its deduplication id is derived from the group's id and the URL."""
    given = posting.deduplication_id
    return msgspec.structs.replace(
        posting,
        deduplication_id=None if given is None else key_hash(f"{given}\0{url}"),
        dead=posting.dead if enabled else ENDPOINT_DISABLED,
    )


def _published(
    posts: Sequence[CheckedRequest], built: list[list[tuple[Draft, str]]], messages: list[Message]
) -> list[PublishedRequest]:
    rest = iter(messages)
    return [
        PublishedRequest(tuple(SentMessage(next(rest), url) for _, url in drafts), post.request.group is not None)
        for post, drafts in zip(posts, built, strict=True)
    ]
