"""Flow control: limits how many requests of one key run at once and start per period, over all workers.

A key is a queue with its own limit and rate. Publishers set both; an operator may pin them, and then the publishers'
values are stored but not applied. A rate is spread evenly: 4 in 2 seconds is one every half second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.http_request import FlowControl
from todoku.core.limit import FASTEST
from todoku.engine.http.names import check_name
from todoku.engine.http.request_queues import TOUCH_INTERVAL
from todoku.store.audit import Signed
from todoku.store.columns import moment
from todoku.store.queues import Load, QueueRow, QueueSpec, QueueState
from todoku.store.store import Store

KIND: Final = "flow:"
LONGEST_PERIOD: Final = 7 * 86_400.0
_MOST: Final = 1000


class FlowKey(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a flow key. A limit of None: unlimited.

    `rate_count`: the starts of the current period that are used up; the period began at `period_start`.
    """

    key: str
    waiting: int
    parallelism_max: int | None
    parallelism_count: int
    rate_max: int | None
    rate_count: int
    period: float
    period_start: datetime | None
    paused: bool
    pinned_parallelism: bool
    pinned_rate: bool


def check(flow: FlowControl) -> None:
    """InvalidMessage unless the key and its limits are valid."""
    check_name(flow.key, "flow control key")
    _check(flow.parallelism, flow.rate, flow.period)


def ensure(store: Store, flow: FlowControl) -> None:
    """Stores a publisher's limits of a key; a pin overrides them. Reads first: the usual case writes nothing."""
    check(flow)
    name = f"{KIND}{flow.key}"

    def decide(row: QueueRow | None) -> QueueState | None:
        state = _published_state(row, flow)
        return None if row is not None and _is_same(row, state) and not _is_touch_due(row) else state

    row = store.queues.get(name)
    if row is None or decide(row) is not None:
        store.queues.change(name, decide)


def pin(
    store: Store,
    key: str,
    signed: Signed,
    *,
    parallelism: int | None = None,
    rate: int | None = None,
    period: float | None = None,
) -> None:
    """Fixes limits of a key; publishers no longer change them. None: unchanged."""
    _check(parallelism, rate, period or 1.0)
    if parallelism is None and rate is None:
        raise InvalidMessage(
            "neither parallelism nor rate is given", hint="give parallelism, rate with its period, or both"
        )

    def change(spec: QueueSpec) -> QueueSpec:
        if parallelism is not None:
            spec = msgspec.structs.replace(spec, pinned_parallelism=parallelism)
        if rate is not None:
            spec = msgspec.structs.replace(spec, pinned_rate=rate, pinned_period=period or spec.period)
        return spec

    _change(store, key, signed, "pin", change)


def unpin(store: Store, key: str, signed: Signed, *, parallelism: bool = True, rate: bool = True) -> None:
    """Applies the publishers' limits again, starting with those of the last publisher."""

    def change(spec: QueueSpec) -> QueueSpec:
        if parallelism:
            spec = msgspec.structs.replace(spec, pinned_parallelism=None)
        return msgspec.structs.replace(spec, pinned_rate=None, pinned_period=None) if rate else spec

    _change(store, key, signed, "unpin", change)


def pause(store: Store, key: str, signed: Signed, *, paused: bool) -> None:
    """Pauses or resumes deliveries with this key; creates the key if it is missing."""

    def decide(row: QueueRow | None) -> QueueState:
        return msgspec.structs.replace(_state(row, _spec(row)), paused=paused)

    action = "pause" if paused else "resume"
    store.queues.change(f"{KIND}{check_name(key, 'flow control key')}", decide, signed, action=action)


def reset_rate(store: Store, key: str, signed: Signed) -> bool:
    """Starts a new period now. Returns False if the key does not exist."""
    return store.queues.reset_rate(f"{KIND}{check_name(key, 'flow control key')}", signed)


def get(store: Store, key: str) -> FlowKey | None:
    """Returns one key; None if it does not exist."""
    row = store.queues.get(f"{KIND}{check_name(key, 'flow control key')}")
    return None if row is None else _keys(store, (row,))[0]


def list_keys(store: Store, *, search: str | None = None) -> tuple[FlowKey, ...]:
    """Returns up to 1000 keys by name; with `search`, only those that contain it."""
    return _keys(store, store.queues.page(KIND, search=search or None, limit=_MOST))


# ----------------------------------------------------------------------------------------------- private


def _check(parallelism: int | None, rate: int | None, period: float) -> None:
    for what, value in (("parallelism", parallelism), ("rate", rate)):
        if value is not None and not (type(value) is int and 0 < value <= FASTEST):
            raise InvalidMessage(f"flow control {what} cannot be {value!r}", hint="use a whole number, 1 or more")
    if not (math.isfinite(period) and 0.001 <= period <= LONGEST_PERIOD):
        raise InvalidMessage(f"flow control period cannot be {period!r} s", hint="use at most a week, such as 1h30m")


def _change(store: Store, key: str, signed: Signed, action: str, change: Callable[[QueueSpec], QueueSpec]) -> None:
    def decide(row: QueueRow | None) -> QueueState:
        return _state(row, change(_spec(row)))

    store.queues.change(f"{KIND}{check_name(key, 'flow control key')}", decide, signed, action=action)


def _spec(row: QueueRow | None) -> QueueSpec:
    return QueueSpec(implicit=True) if row is None or row.created_at is None else row.spec


def _published_state(row: QueueRow | None, flow: FlowControl) -> QueueState:
    """Returns the state of the key with a publisher's limits."""
    spec = msgspec.structs.replace(_spec(row), parallelism=flow.parallelism, rate=flow.rate, period=flow.period)
    return _state(row, spec)


def _state(row: QueueRow | None, spec: QueueSpec) -> QueueState:
    """Returns the state that follows from a spec: pins take precedence."""
    rate, period = _rate(spec)
    return QueueState(
        paused=row is not None and row.paused,
        concurrency=spec.pinned_parallelism or spec.parallelism,
        rate=None if rate is None else rate / period,
        spec=spec,
    )


def _rate(spec: QueueSpec) -> tuple[int | None, float]:
    if spec.pinned_rate is not None:
        return spec.pinned_rate, spec.pinned_period or spec.period
    return spec.rate, spec.period


def _is_same(row: QueueRow, state: QueueState) -> bool:
    """Compares the publishers' specs, not the limits in force: an operator's limit stays until a spec changes."""
    return row.created_at is not None and row.spec == state.spec


def _is_touch_due(row: QueueRow) -> bool:
    return row.now - row.updated_at.timestamp() > TOUCH_INTERVAL


def _keys(store: Store, rows: tuple[QueueRow, ...]) -> tuple[FlowKey, ...]:
    loads = store.queues.loads([row.name for row in rows])
    return tuple(_key(row, loads[row.name]) for row in rows)


def _key(row: QueueRow, load: Load) -> FlowKey:
    rate, period = _rate(row.spec)
    ahead = 0.0 if row.paced_until is None or rate is None else max(0.0, row.paced_until - row.now)
    started = 0 if rate is None else min(rate, math.ceil(ahead * rate / period))
    return FlowKey(
        key=row.name.removeprefix(KIND),
        waiting=load.waiting,
        parallelism_max=row.concurrency,
        parallelism_count=load.running,
        rate_max=rate,
        rate_count=started,
        period=period,
        period_start=moment(row.now - row.now % period) if rate is not None else None,
        paused=row.paused,
        pinned_parallelism=row.spec.pinned_parallelism is not None,
        pinned_rate=row.spec.pinned_rate is not None,
    )
