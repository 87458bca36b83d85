"""`connect`: which queue this is, and what is done while it is away. The one place that looks at the environment."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Final, get_args

from todoku.app import App, load_settings
from todoku.client.answers import Backend
from todoku.client.embedded_queue import Embedded
from todoku.client.queue import Fallback, Handler, Queue
from todoku.client.remote_queue import Remote
from todoku.client.spool import DEDUPLICATED_FOR, Spool
from todoku.core.errors import InvalidSetting
from todoku.core.outcome import Duration, seconds
from todoku.engine.observability.process_alert import Alarm
from todoku.engine.observability.telemetry import Telemetry

WITHIN: Final = 0.4
"""Seconds from the look-up of the queue's name to the end of its answer."""

_FORWARDED_WITHIN: Final = 10.0
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
) -> Queue:
    """The queue `to`: an App, or the URL of a todoku server or of QStash. None: QSTASH_URL, with QSTASH_TOKEN.

    When it gives no answer `within` 0.4 seconds, `fallback` says what is done instead. "raise": QueueUnavailable.
    "sync": the handler of this URL or topic runs here. "spool": it is committed to the SQLite file `spool`, and
    forwarded when the queue is back. What the queue refuses is raised in any case. With SKIP_QSTASH_IN_TEST=1 a queue
    elsewhere is not asked at all: the handlers run (S4-53).
    """
    if fallback not in get_args(Fallback):
        raise InvalidSetting(f"fallback cannot be {fallback!r}", hint='"raise", "sync" or "spool"')
    limit = seconds(within, what="within")
    if not 0 < limit < math.inf:
        raise InvalidSetting(f"within cannot be {within!r}", hint="seconds greater than 0: within=0.4")
    if fallback == "sync" and not handlers:
        raise InvalidSetting("fallback is sync, and there are no handlers", hint="handlers={'https://…': function}")
    lasting = DEDUPLICATED_FOR if fallback == "spool" else None
    backend: Backend = _backend(to, token, lasting)
    skipped = not isinstance(backend, Embedded) and os.environ.get("SKIP_QSTASH_IN_TEST", "").strip().lower() in _TRUE
    kept = Spool(spool, backend, within=_FORWARDED_WITHIN) if fallback == "spool" and not skipped else None
    return Queue(
        backend,
        fallback=fallback,
        within=limit,
        handlers=handlers or {},
        spool=kept,
        telemetry=_telemetry(backend, kept),
        alarm=Alarm(backend.box.settings if isinstance(backend, Embedded) else load_settings()),
        always_here=skipped,
    )


def spool_of(to: str | None, token: str | None, place: str) -> Spool:
    """A spool by itself, forwarding: for one that its program left behind."""
    return Spool(place, _backend(to, token, DEDUPLICATED_FOR), within=_FORWARDED_WITHIN)


def _backend(to: str | App | None, token: str | None, lasting: float | None) -> Backend:
    if isinstance(to, App):
        return Embedded(to, deduplicated_for=lasting)
    url = to or os.environ.get("QSTASH_URL", "").strip()
    if not url:
        raise InvalidSetting("there is no queue to connect to", hint="pass an App or a URL, or set QSTASH_URL")
    if not url.startswith(("http://", "https://")):
        raise InvalidSetting(f"a queue cannot be at {url!r}", hint="an App, or a URL: https://queue.example.com")
    return Remote(url, token or os.environ.get("QSTASH_TOKEN", "").strip(), deduplicated_for=lasting)


def _telemetry(backend: Backend, spool: Spool | None) -> Telemetry:
    if isinstance(backend, Embedded):
        return backend.box.telemetry
    return Telemetry() if spool is None else spool.box.telemetry
