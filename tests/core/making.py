"""What the tests of the core share: values to decide about, and strategies that make them."""

from __future__ import annotations

from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st

from todoku.core.backoff import Backoff, BackoffTable, Exponential, Linear
from todoku.core.identity import Json
from todoku.core.message import Claimed
from todoku.core.outcome import Abort, Done, Outcome, Retry, Snooze

quick = settings(deadline=None)
"""Properties of the core have no time limit: they run beside other tests."""

WORKER = UUID("0190b6a4-7c00-7000-8000-000000000001")


def claimed(**changes: object) -> Claimed:
    """A delivery that a worker owns, in its first of six attempts."""
    values: dict[str, object] = dict.fromkeys(Claimed.__struct_fields__)
    values |= {"id": 1, "epoch": 1, "message_seq": 1, "message_id": "m", "topic": "order.created"}
    values |= {"content_type": "application/json", "destination": "warehouse", "queue": "warehouse", "priority": 0}
    values |= {"attempt": 1, "max_attempts": 6, "lost": 0, "snoozes": 0, "replay_count": 0, "worker": WORKER}
    values |= {"next_run_at": 0.0, "created_at": 0.0}
    assert changes.keys() <= values.keys()
    return Claimed(**(values | changes))  # type: ignore[arg-type]


jitters = st.floats(0, 1, exclude_max=True)
waits = st.floats(0, 86_400, allow_subnormal=False)
reasons = st.from_regex(r"[A-Z][A-Z0-9_]{0,63}", fullmatch=True)
any_text = st.text(st.characters())  # NUL and half surrogates included

policies: st.SearchStrategy[Backoff] = st.one_of(
    st.builds(BackoffTable, st.lists(waits, min_size=1, max_size=10).map(tuple)),
    st.builds(Linear, waits),
    st.builds(Exponential, waits, st.floats(1, 100), waits),
)
retries = st.builds(Retry, st.none() | waits, reasons, any_text)
aborts = st.builds(Abort, reasons, any_text)
snoozes = st.builds(Snooze, waits)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Done, st.none() | st.just('{"sent": true}')), retries, aborts, snoozes
)
deliveries = st.builds(
    lambda attempt, max_attempts, snoozes: claimed(attempt=attempt, max_attempts=max_attempts, snoozes=snoozes),
    st.integers(1, 100),
    st.integers(1, 100),
    st.integers(0, 200),
)

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | names
)
bodies: st.SearchStrategy[Json] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=12
)
