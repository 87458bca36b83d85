"""The App of a relay that tests kill: everything goes to one broker, in order by key.

Whoever runs it says by the environment which kind of broker it is, where, and the address on it.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import todoku
from tests.destinations.kinds import KINDS

NAME = "broker"
TOPICS = "order.**"


def relay() -> todoku.App:
    """The App, as a worker process loads it."""
    box = todoku.App()
    service: Any = SimpleNamespace(url=os.environ["TODOKU_TEST_BROKER"])
    kind = KINDS[os.environ["TODOKU_TEST_KIND"]](service)
    box.route(TOPICS, to=kind.destination(os.environ["TODOKU_TEST_ADDRESS"], name=NAME), ordered=True)
    return box


if "TODOKU_TEST_KIND" in os.environ:
    box = relay()
