"""The fulfilment example and runs of it that were recorded earlier: they go on with the code of today."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fulfilment_example.shop import Shop

from tests.examples.conftest import EXAMPLES
from todoku.testing import RunHistory, read_histories, replay_history

HISTORIES = read_histories(EXAMPLES / "fulfilment" / "histories.jsonl")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(f"sqlite:///{tmp_path}/none.db")
    yield made
    made.box.close()
    assert list(tmp_path.iterdir()) == [], "a replay needs no database"


@pytest.mark.parametrize("history", HISTORIES, ids=str)
def test_a_recorded_run_goes_on_with_this_code(shop: Shop, history: RunHistory) -> None:
    replay_history(shop.box, history).check()


def test_where_each_recorded_run_goes_on(shop: Shop) -> None:
    """One waits for its signal, one for its children, one sleeps; two have ended, and come to the same end."""
    reports = [replay_history(shop.box, history) for history in HISTORIES]
    assert [(report.history.status, [step.name for step in report.next], report.same_end) for report in reports] == [
        ("pending", ["wait"], None),
        ("succeeded", [], True),
        ("aborted", [], True),
        ("pending", ["gather pick"], None),
        ("pending", ["is_shipped"], None),
    ]
