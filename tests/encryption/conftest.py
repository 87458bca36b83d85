"""An App with master keys on each database."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

import todoku
from tests.support.world import World
from todoku.core.sealed import format_master_key

Boxes = Callable[..., todoku.App]


def new_key(id: str) -> str:
    """A master key as a setting has it."""
    return format_master_key(id, os.urandom(32))


@pytest.fixture
def old() -> str:
    """The master key of last spring."""
    return new_key("2026-05")


@pytest.fixture
def new() -> str:
    """The master key of this autumn."""
    return new_key("2026-11")


@pytest.fixture
def boxes(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Boxes]:
    """Apps on the world's database, each as a process of its own would have it: with these master keys."""
    made: list[todoku.App] = []

    def box(*master_keys: str, **settings: str) -> todoku.App:
        with monkeypatch.context() as environ:
            environ.setenv("TODOKU_MASTER_KEYS", ",".join(master_keys))
            for name, value in settings.items():
                environ.setenv(f"TODOKU_{name.upper()}", value)
            made.append(todoku.App(world.url))
        return made[-1]

    yield box
    for one in made:
        one.close()


@pytest.fixture
def box(boxes: Boxes, old: str) -> todoku.App:
    """An App with one master key."""
    return boxes(old)
