"""For your own test suite: look at what was enqueued, move the clock, crash the worker, run jobs where they are called.

The pytest plugin of this package gives the fixture `todoku_box`; everything here works without pytest, too. See
docs/testing.md.
"""

from todoku.testing.assertions import assert_enqueued, assert_not_enqueued, assert_not_published, assert_published
from todoku.testing.clock import Clock, fire, frozen
from todoku.testing.crashes import crash, lose_lease
from todoku.testing.fresh_database import empty, fresh
from todoku.testing.inline import inline
from todoku.testing.stored_messages import Enqueued, Published, enqueued, published

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
]
