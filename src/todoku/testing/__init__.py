"""For your test suite: assert what was enqueued, move the clock, crash the worker, run jobs inline, try recorded runs.

The pytest plugin of this package has the fixture `todoku_box`; everything here also works without pytest. See
docs/testing.md.
"""

from todoku.engine.flows.history import RunHistory
from todoku.engine.flows.history_replay import HistoryReplay
from todoku.testing.assertions import (
    Enqueued,
    Published,
    assert_enqueued,
    assert_not_enqueued,
    assert_not_published,
    assert_published,
    enqueued,
    published,
)
from todoku.testing.clock import Clock, fire, frozen, skip_sleeps
from todoku.testing.crashes import crash, lose_lease
from todoku.testing.fresh_database import empty, fresh
from todoku.testing.histories import read_histories, record_history, replay_history, write_histories
from todoku.testing.inline import inline

__all__ = [
    "Clock",
    "Enqueued",
    "HistoryReplay",
    "Published",
    "RunHistory",
    "assert_enqueued",
    "assert_not_enqueued",
    "assert_not_published",
    "assert_published",
    "crash",
    "empty",
    "enqueued",
    "fire",
    "fresh",
    "frozen",
    "inline",
    "lose_lease",
    "published",
    "read_histories",
    "record_history",
    "replay_history",
    "skip_sleeps",
    "write_histories",
]
