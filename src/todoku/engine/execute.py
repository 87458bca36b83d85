"""3. Execute: the checks before an attempt starts, and how its end becomes an outcome."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from todoku.core.decision import Settlement, decide_by_ledger
from todoku.core.errors import CannotOpen, InvalidMessage, StoreError
from todoku.core.failure import DeliveryError
from todoku.core.flow import CHILD
from todoku.core.message import Claimed
from todoku.core.outcome import DONE, Abort, Done, Outcome, Retry, Snooze, Traceback
from todoku.core.status import Status
from todoku.engine.encryption.opener import Opener, unopenable_outcome
from todoku.engine.observability.log import Log
from todoku.engine.observability.message_headers import set_current_headers
from todoku.engine.observability.metrics import quietly
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.publish import encode
from todoku.engine.registry import Outgoing, Registry, Target, outgoing
from todoku.engine.tracebacks import Which, format_error, format_stack
from todoku.engine.worker.breakers import Breakers
from todoku.engine.worker.held_deliveries import StartedDeliveries
from todoku.engine.worker.lease import Lease
from todoku.engine.worker.worker_thread import OnFailure
from todoku.store.store import Store

if TYPE_CHECKING:
    from todoku.engine.worker.step_pools import StepPools

_HTTP_MARGIN: Final = 5.0


class Finished(msgspec.Struct, frozen=True, gc=False):
    """An attempt that ended and waits to be settled. With a Settlement, the ledger decided and nothing was run."""

    claim: Claimed
    outcome: Outcome | Settlement
    started: float
    ended: float
    error_type: str | None = None
    span: Any = None
    settled: bool = False
    """Whether it was settled already, in the handler's own transaction."""
    traceback: Traceback | None = None
    bound: dict[str, Any] | None = None
    """Fields that the handler bound to `ctx.log`."""


class Unstarted(msgspec.Struct, frozen=True):
    """The attempt could not start and is given back: its ledger entry or its transaction was not available."""


class Executor:
    """The steps of an attempt that all pools of a worker share: checks, decryption, ledger, spans, outcome."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        lease: Lease,
        telemetry: Telemetry,
        *,
        put: Callable[[Finished], None],
        give_back: Callable[..., None],
        breakers: Breakers,
        on_failure: OnFailure,
        max_processing: float,
        opener: Opener,
        tracebacks: Which,
        is_draining: Callable[[], bool] = lambda: False,
    ) -> None:
        self.store = store
        self.registry = registry
        self.lease = lease
        self.telemetry = telemetry
        self.put = put
        self.give_back = give_back
        self.breakers = breakers
        self.on_failure = on_failure
        self.max_processing = max_processing
        self.opener = opener
        self.tracebacks = tracebacks
        self.is_draining = is_draining
        self.step_pools: StepPools
        """Where the plain functions of workflows run. The pools of the worker set it."""
        self.started: StartedDeliveries | None = None
        self.cancelled: set[tuple[int, int]] = set()
        """(id, epoch) of attempts that were cancelled and have not stopped yet."""

    def timeout(self, target: Target, claim: Claimed) -> float:
        """Returns the seconds this attempt may take: the message's or else the handler's, at most the worker's."""
        seconds = claim.timeout if claim.timeout is not None else target.timeout
        if seconds is not None and target.at_once is not None:
            seconds += _HTTP_MARGIN  # the HTTP sender enforces the deadline itself and classifies the timeout better
        return self.max_processing if seconds is None else min(seconds, self.max_processing)

    def owns(self, claim: Claimed, now: float) -> bool:
        """Whether the lease of this claim is certainly still valid (I12)."""
        return now < self.lease.until and claim.worker is self.lease.worker

    def may_start(self, claim: Claimed, now: float) -> bool:
        """Whether the attempt may start. If the lease may have ended (I12) or the breaker is open, gives it back."""
        if not self.owns(claim, now):
            self.give_back([claim])  # fenced, so harmless if the lease did end; it may also have been renewed
            return False
        if seconds := self.breakers.seconds_open(claim.destination):
            self.give_back([claim], delay=seconds)
            return False
        return True

    def may_be_decided(self, claim: Claimed) -> bool:
        """Whether `decide_unsent` may decide. A fast path: most deliveries have no key and are not cancelled."""
        return claim.key_hash is not None or bool(self.cancelled) or bool(self.registry.schemas.declared)

    def decide_unsent(self, claim: Claimed) -> Outcome | Settlement | None:
        """Returns the outcome that is known before sending: cancelled, decided by the ledger, or against its schema."""
        if self.cancelled and (claim.id, claim.epoch) in self.cancelled:
            return Abort("CANCELLED", "cancelled before it started")
        if claim.effect_state is not None and (decided := decide_by_ledger(claim)) is not None:
            return decided
        return self.registry.schemas.refused(claim) if self.registry.schemas.declared else None

    def open(self, claim: Claimed) -> Claimed | None:
        """Decrypts a claim. Blocks if its key is not cached. None: not possible; it was settled or given back."""
        try:
            return self.opener.open(claim)
        except CannotOpen as error:
            now = time.monotonic()
            self.put(Finished(claim, unopenable_outcome(error, claim), now, now, type(error).__name__))
        except StoreError:  # its data key cannot be read now; the heartbeat counts and logs the failure
            self.give_back([claim])
        return None

    def must_recheck_ledger(self, claim: Claimed) -> bool:
        """Whether its ledger entry may have changed since the claim, because it may have been sent before (H13)."""
        return claim.key_hash is not None and (claim.lost > 0 or claim.attempt > 1 or claim.replay_count > 0)

    def recheck_ledger(self, claim: Claimed) -> Settlement | Unstarted | None:
        """Reads the ledger again and returns its decision, if any. Blocks.

        Unstarted: the ledger cannot be read, so the attempt was given back.
        """
        try:
            entry = self.store.claims.effects([claim]).get(claim.id)
        except StoreError:  # the heartbeat counts and logs it
            self.give_back([claim])
            return Unstarted()
        if entry is None:
            return None
        state, digest = entry
        return decide_by_ledger(msgspec.structs.replace(claim, effect_state=state, effect_digest=digest))

    def finish_unsent(self, claim: Claimed, decided: Outcome | Settlement | Unstarted, now: float) -> bool:
        """Finishes an attempt that was decided before sending. True: the next row of its lane may run."""
        if isinstance(decided, Unstarted):
            return False
        self.finish(claim, decided, now)
        return isinstance(decided, Settlement) and decided.status is Status.SUCCEEDED

    def begin(self, claim: Claimed, target: Target) -> Any:
        """Records the start of an attempt for the supervisor, and begins its spans if it is sampled.

        Until it ends, what its handler publishes inherits its correlation id.
        """
        if self.started is not None:
            self.started.begin(claim.id)
        if claim.headers is not None and target.call is not None:
            set_current_headers(claim.headers)
        return self.telemetry.begin(claim, send=target.sender is not None)

    def give_back_unstarted(self, claim: Claimed, span: Any, *, delay: float) -> None:
        """Undoes `begin` for an attempt that could not start, and gives it back."""
        if claim.headers is not None:
            set_current_headers(None)
        if span is not None:
            self.telemetry.leave(span)
        if self.started is not None:
            self.started.end(claim.id)
        self.give_back([claim], delay=delay)

    def outgoing(self, claim: Claimed, span: Any) -> Outgoing:
        """Builds the message for its destination, with the trace context of this send."""
        message = outgoing(claim)
        if span is None:
            return message
        return msgspec.structs.replace(message, headers=self.telemetry.with_trace(span, message.headers))

    def finish(
        self,
        claim: Claimed,
        outcome: Outcome | Settlement,
        started: float,
        error: Exception | None = None,
        span: Any = None,
        *,
        settled: bool = False,
        stack: Traceback | None = None,
        bound: dict[str, Any] | None = None,
    ) -> None:
        """Passes an ended attempt to the settler. `stack`: where the handler stood when it was stopped."""
        name = type(error).__name__ if error is not None else None
        trace = stack if error is None or stack is not None else self._format_error(claim, error)
        if trace is not None:
            trace = self.opener.seal_traceback(claim, trace)
        if isinstance(error, TimeoutError):
            outcome = _explain_timeout(outcome, claim.destination, time.monotonic() - started)
        if claim.headers is not None:
            set_current_headers(None)
        if span is not None:
            self.telemetry.leave(span)
        if self.started is not None:
            self.started.end(claim.id)
        if outcome is not DONE and not isinstance(outcome, Settlement):
            outcome = self.opener.seal_outcome(claim, outcome, error)
        if (outcome is not DONE or claim.destination in self.breakers) and not isinstance(outcome, Settlement):
            self.breakers.record(claim.destination, outcome)
        self.put(Finished(claim, outcome, started, time.monotonic(), name, span, settled, trace, bound))

    @quietly
    def _format_error(self, claim: Claimed, error: Exception) -> Traceback | None:
        if isinstance(error, DeliveryError | Snooze):
            return None  # the destination has told its reason; a snooze is no failure
        return format_error(error, handler_package(self.registry[claim.destination]), self.tracebacks)

    @quietly
    def format_stack(self, claim: Claimed, where: FrameType | TracebackType | None, why: str) -> Traceback | None:
        """Formats the frames in which a handler was stopped; None if the reason was not its timeout."""
        if why != "timeout":
            return None
        return format_stack(where, handler_package(self.registry[claim.destination]), self.tracebacks)


def handler_package(target: Target) -> str:
    """Returns the top-level package of a target's code."""
    module = target.reference.partition(":")[0] if target.reference else type(target.sender).__module__
    return module.partition(".")[0]


def _explain_timeout(outcome: Outcome | Settlement, name: str, seconds: float) -> Outcome | Settlement:
    """Adds what timed out, and when, to the outcome of a TimeoutError that a handler raised: it often has no text."""
    match outcome:
        case Retry(reason="TIMEOUT", detail=detail):
            return Retry(outcome.after, "TIMEOUT", f"{name} raised it after {seconds:.3g} s: {detail}")
        case Abort(reason="TIMEOUT", detail=detail):
            return Abort("TIMEOUT", f"{name} raised it after {seconds:.3g} s: {detail}")
        case _:
            return outcome


def outcome_of(value: Any, target: Target, claim: Claimed) -> Outcome | Settlement:
    """Turns a handler's return value into an outcome. A run that parks returns its settlement."""
    if value is None:
        return DONE
    if isinstance(value, Done | Retry | Abort | Snooze | Settlement):
        return value
    if not target.keep_result and (claim.headers is None or CHILD not in claim.headers):
        return DONE
    try:
        return Done(encode(value))
    except InvalidMessage as error:
        # The work is done, and a failure would repeat it: only its result is lost.
        Log(adapter=target.name).warning("RESULT_NOT_KEPT", error_type=type(error).__name__)
        return DONE


def as_exception(raised: BaseException) -> Exception:
    """Returns what a handler raised as an Exception. SystemExit, say, would end its thread or the whole worker."""
    if isinstance(raised, Exception):
        return raised
    error = RuntimeError(f"it raised {raised!r}, which is no Exception").with_traceback(raised.__traceback__)
    error.__cause__ = raised
    return error


def interrupted_outcome(why: str, name: str = "", seconds: float = 0.0) -> Outcome:
    """Returns the outcome of an attempt that the worker stopped. `name`: of its destination; `seconds`: its limit."""
    match why:
        case "timeout":
            return Retry(reason="TIMEOUT", detail=f"{name} did not end within {seconds:g} s")
        case "cancel":
            return Abort("CANCELLED", "cancelled while running")
        case _:
            return Retry(reason="INTERRUPTED", detail="the worker was stopped before the attempt ended")
