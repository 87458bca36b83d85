"""`connect`: chooses the queue and the fallback. The only module of the client that reads the environment."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Final, get_args

from todoku.app import App, load_settings
from todoku.client.answers import Backend
from todoku.client.embedded_queue import EmbeddedBackend
from todoku.client.queue import Fallback, Handler, Queue
from todoku.client.remote_queue import RemoteBackend
from todoku.client.spool import DEDUPLICATED_FOR, Spool
from todoku.core.errors import InvalidSetting
from todoku.core.outcome import Duration, seconds
from todoku.engine.observability.alerts import Alarm
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.process_settings import read_secret

WITHIN: Final = 0.4
"""Seconds, from the DNS lookup of the queue to the end of its answer."""

_FORWARD_TIMEOUT: Final = 10.0
_SPOOL: Final = "todoku-spool.db"
_TRUE: Final = frozenset({"1", "true", "yes", "on"})


def connect(
    to: str | App | None = None,
    *,
    token: str | None = None,
    fallback: Fallback = "raise",
    handlers: Mapping[str, Handler] | None = None,
    spool: str = _SPOOL,
    within: Duration = WITHIN,
    metrics: App | None = None,
) -> Queue:
    """Returns the queue `to`: an App, or the URL of a todoku server or of QStash. None: QSTASH_URL and QSTASH_TOKEN.

    If the queue does not answer `within` 0.4 seconds, or refuses, `fallback` decides. "raise": raises QueueUnavailable
    or QueueRefused. "sync": runs the handler of this URL or topic here. "spool": commits the message to the SQLite file
    `spool`, and forwards it when the queue takes it. With SKIP_QSTASH_IN_TEST=1 a remote queue is not used at all: the
    handlers run (S4-53). `metrics`: the App whose metrics count publishes to a remote queue, too.
    """
    if fallback not in get_args(Fallback):
        raise InvalidSetting(f"fallback cannot be {fallback!r}", hint='use "raise", "sync" or "spool"')
    limit = seconds(within, what="within")
    if not 0 < limit < math.inf:
        raise InvalidSetting(f"within cannot be {within!r}", hint="give seconds greater than 0, such as within=0.4")
    if fallback == "sync" and not handlers:
        raise InvalidSetting('fallback="sync" needs handlers', hint="pass handlers={'https://…': function}")
    deduplicated_for = DEDUPLICATED_FOR if fallback == "spool" else None
    backend: Backend = _backend(to, token, deduplicated_for)
    is_embedded = isinstance(backend, EmbeddedBackend)
    skips_queue = not is_embedded and os.environ.get("SKIP_QSTASH_IN_TEST", "").strip().lower() in _TRUE
    opened_spool = Spool(spool, backend, within=_FORWARD_TIMEOUT) if fallback == "spool" and not skips_queue else None
    return Queue(
        backend,
        fallback=fallback,
        within=limit,
        handlers=handlers or {},
        spool=opened_spool,
        telemetry=_telemetry(backend, metrics),
        alarm=Alarm(backend.box.settings) if isinstance(backend, EmbeddedBackend) else _alarm(backend),
        skips_queue=skips_queue,
    )


def open_spool(to: str | None, token: str | None, place: str) -> Spool:
    """Opens the spool of a program that no longer runs, and starts forwarding it."""
    return Spool(place, _backend(to, token, DEDUPLICATED_FOR), within=_FORWARD_TIMEOUT)


def _backend(to: str | App | None, token: str | None, deduplicated_for: float | None) -> Backend:
    if isinstance(to, App):
        return EmbeddedBackend(to, deduplicated_for=deduplicated_for)
    url = to or os.environ.get("QSTASH_URL", "").strip()
    if not url:
        raise InvalidSetting("there is no queue to connect to", hint="pass an App or a URL, or set QSTASH_URL")
    if not url.startswith(("http://", "https://")):
        raise InvalidSetting(
            f"a queue cannot be at {url!r}", hint="pass an App, or a URL such as https://queue.example.com"
        )
    known = read_secret("QSTASH_TOKEN", token or os.environ.get("QSTASH_TOKEN", "").strip())
    return RemoteBackend(url, str(known), deduplicated_for=deduplicated_for)


def _telemetry(backend: Backend, metrics: App | None) -> Telemetry:
    """Not that of the spool, which counts a spooled message as published."""
    if isinstance(backend, EmbeddedBackend):
        return backend.box.telemetry
    return Telemetry() if metrics is None else metrics.telemetry


def _alarm(backend: Backend) -> Alarm:
    """Names the queue: the settings may have a database, which is another one."""
    return Alarm(load_settings(), about=backend.name)
