"""For your test suite: assert what was enqueued, move the clock, crash the worker, run jobs inline.

The pytest plugin of this package has the fixture `todoku_box`; everything here also works without pytest. See
docs/testing.md.
"""

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
from todoku.testing.inline import inline

__all__ = [
    "Clock",
    "Enqueued",
    "Published",
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
    "skip_sleeps",
]
