"""One verification at a time, in a thread of this process, with its progress; its result is kept with its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

import msgspec

from todoku.core.errors import InvalidAct, TodokuError
from todoku.core.settings import Settings
from todoku.engine.diagnostics.verification import CHECKS, Verdict, verify
from todoku.engine.observability.log import Log
from todoku.store.store import Store

VerificationState = Literal["never", "running", "held", "broken", "failed"]


class VerificationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The verification that runs, or the last one. `held`: every invariant holds; `failed`: it did not finish."""

    state: VerificationState = "never"
    by: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    checked: int = 0
    of: int = len(CHECKS)
    seconds: float | None = None
    verdicts: tuple[Verdict, ...] = ()
    error: str | None = None


class VerificationTask:
    """The verifications of one process. Thread-safe."""

    def __init__(self, *, check: Callable[..., tuple[Verdict, ...]] = verify) -> None:
        self._check = check
        self._lock = threading.Lock()
        self._report = VerificationReport()
        self._thread: threading.Thread | None = None

    @property
    def report(self) -> VerificationReport:
        """The verification that runs, or the last one."""
        return self._report

    def start(self, store: Store, settings: Settings, *, by: str) -> VerificationReport:
        """Starts a verification. InvalidAct: one runs."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                raise InvalidAct("a verification runs already", hint="wait for its result")
            self._report = VerificationReport(state="running", by=by, started_at=datetime.now(UTC))
            run = threading.Thread(target=self._run, args=(store, settings), name="todoku verification", daemon=True)
            self._thread = run
            run.start()
        return self._report

    def wait(self, seconds: float) -> VerificationReport:
        """Waits until the verification has ended, at most so long."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self._report

    def _run(self, store: Store, settings: Settings) -> None:
        began, replace = time.monotonic(), msgspec.structs.replace
        try:
            verdicts = self._check(
                store,
                history_ttl=settings.history_ttl,
                ledger_ttl=settings.ledger_ttl,
                patience=3 * settings.reclaim_interval_sec,
                progress=self._progress,
            )
        except TodokuError as error:
            ended = replace(self._report, state="failed", error=str(error))
        except Exception as error:  # noqa: BLE001 - the page shows that it failed; the log shows where
            Log().error("VERIFICATION_FAILED", error_type=type(error).__name__)
            ended = replace(self._report, state="failed", error=type(error).__name__)
        else:
            broken = any(verdict.examples for verdict in verdicts)
            ended = replace(self._report, state="broken" if broken else "held", verdicts=verdicts, checked=len(CHECKS))
        self._report = replace(ended, ended_at=datetime.now(UTC), seconds=round(time.monotonic() - began, 3))

    def _progress(self, checked: int) -> None:
        self._report = msgspec.structs.replace(self._report, checked=checked)
