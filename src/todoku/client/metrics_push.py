"""Pushes what this process has counted to a daemon, whose metrics and alerts then include it."""

from __future__ import annotations

import os
import threading
from typing import Final
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec

from todoku.app import App
from todoku.client.http_transport import Transport, TransportRequest
from todoku.client.queue import Queue
from todoku.core.errors import InvalidSetting, QueueUnavailable, TodokuError
from todoku.core.outcome import Duration, seconds
from todoku.engine.observability.count_report import CountReport, rise
from todoku.engine.observability.log import Log
from todoku.engine.observability.metrics import Snapshot, empty, merge
from todoku.engine.observability.telemetry import Telemetry

_TIMEOUT: Final = 10.0
_EVERY: Final = 15.0
"""Seconds: as often as a daemon checks its alerts."""


def push_metrics(of: App | Queue, to: str, *, token: str | None = None, every: Duration = _EVERY) -> MetricsPush:
    """Starts a thread that adds what this process counts to the metrics of the daemon at the URL `to`.

    Start it in each process that publishes, after a fork. `token`: one with the scope `publish`; None: TODOKU_TOKEN, or
    none for a daemon that only this machine can reach. Close it, or use it in a `with` block: then the last counts are
    pushed before it ends. While the daemon is away nothing is lost; the counts are pushed when it is back.
    """
    interval = seconds(every, what="every")
    if interval <= 0:
        raise InvalidSetting(f"every cannot be {every!r}", hint="give seconds greater than 0, such as every=15")
    return MetricsPush(of.telemetry, to, token or os.environ.get("TODOKU_TOKEN", "").strip(), interval)


class MetricsPush:
    """The thread of `push_metrics`."""

    def __init__(self, telemetry: Telemetry, to: str, token: str, every: float) -> None:
        self._telemetry = telemetry
        self._transport = Transport(to.rstrip("/"))
        self._path = f"{urlsplit(to).path.rstrip('/')}/metrics"
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        self._every = every
        self._process = str(uuid4())
        self._acknowledged: Snapshot = empty()
        self._number = 0
        self._open: tuple[CountReport, Snapshot] | None = None
        """A report whose answer has not come: it is repeated as it is, because the daemon may have added it."""
        self._failing = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="todoku-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Pushes the last counts, once, and ends the thread."""
        self._stopped.set()
        self._thread.join(2 * _TIMEOUT)
        self._transport.close()

    def __enter__(self) -> MetricsPush:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._stopped.wait(self._every):
            self._push()
        self._push()

    def _push(self) -> None:
        """Pushes everything that was counted until now. Never raises."""
        try:
            while (report := self._next()) is not None:
                self._send(report)
                self._open = None
            self._failing = False
        except (TodokuError, msgspec.MsgspecError) as error:
            if not self._failing:  # one line for each time that it begins to fail
                Log(to=self._transport.url).warning(
                    "METRICS_NOT_PUSHED", error_type=type(error).__name__, error=str(error)
                )
            self._failing = True

    def _next(self) -> CountReport | None:
        if self._open is None:
            now = merge([self._telemetry.dump()])
            risen = rise(now, self._acknowledged)
            if risen is None:
                return None
            self._number += 1
            self._open = CountReport(self._process, self._number, risen), now
        return self._open[0]

    def _send(self, report: CountReport) -> None:
        body = msgspec.json.encode(report)
        answer = self._transport.send(TransportRequest("POST", self._path, self._headers, body), within=_TIMEOUT)
        if answer.status != 204:
            raise QueueUnavailable(f"the daemon answered {answer.status}", hint="give the URL of a todoku daemon")
        assert self._open is not None  # noqa: S101 - it is the report that was sent
        self._acknowledged = self._open[1]
