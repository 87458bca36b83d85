"""R19: a large source transaction is staged in several commits, and published by one."""

from __future__ import annotations

import pytest

from tests.capture.conftest import OpenShop
from tests.capture.shop import ORDERS, Shop
from todoku.capture.session import SessionOptions
from todoku.core.errors import CaptureError, DatabaseUnavailable
from todoku.store.captures import CaptureStore

pytestmark = pytest.mark.postgres

STAGED = SessionOptions(heartbeat=0.2, measure=0.2, stage_rows=50)


@pytest.fixture(params=["sqlite_url", "postgres_url"])
def large(open_shop: OpenShop, request: pytest.FixtureRequest) -> Shop:
    """A capture that stages transactions of more than 50 rows, on each database."""
    shop = open_shop(request.getfixturevalue(request.param), options=STAGED)
    shop.sql(ORDERS)
    shop.capture()
    shop.route()
    shop.catch_up()
    return shop


def test_R19_all_rows_of_a_large_transaction_are_published_at_once(
    large: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[int] = []
    stage = CaptureStore.stage

    def staging(self: CaptureStore, *args: object, **more: object) -> bool:
        parts.append(len(large.messages()))
        return stage(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(CaptureStore, "stage", staging)
    large.sql("insert into orders select n from generate_series(1, 333) n", "update orders set what = 'x' where id = 1")
    large.catch_up()

    assert parts == [0] * 6
    messages = large.messages()
    assert [key for _, key, _ in messages] == [*(str(n) for n in range(1, 334)), "1"]
    assert len({one["capture-xid"] for one in large.headers()}) == 1
    assert large._rows("select count(*) from todoku_capture_stage") == [(0,)]
    assert large.row.changes == 334
    large.box.drain()
    assert len(large.seen) == 334


def test_R19_an_unfinished_stage_is_discarded(large: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = CaptureStore.stage
    failures = iter([False, False, True])

    def staging(self: CaptureStore, *args: object, **more: object) -> bool:
        if next(failures, False):
            raise RuntimeError("the reader dies here")
        return stage(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(CaptureStore, "stage", staging)
    large.sql("insert into orders select n from generate_series(1, 200) n")
    with pytest.raises(CaptureError, match="RuntimeError"):
        large.catch_up()
    assert large.messages() == []
    assert large._rows("select count(*) from todoku_capture_stage") == [(2,)]

    large.catch_up()

    assert len(large.messages()) == 200
    assert large._rows("select count(*) from todoku_capture_stage") == [(0,)]


def test_R19_a_truncate_within_a_large_transaction(large: Shop) -> None:
    large.sql(
        "insert into orders select n from generate_series(1, 120) n", "truncate orders",
        "insert into orders select n from generate_series(100, 180) n",
    )  # fmt: skip
    large.catch_up()

    assert set(large.state_of()) == set(range(100, 181))
    keys = large._rows("select count(*) from todoku_capture_key k join todoku_capture_table t on t.key_set = k.key_set")
    assert keys == [(81,)]


def test_R16_a_lost_reply_does_not_publish_twice(large: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CaptureStore.store
    lost: list[int] = []

    def losing(self: CaptureStore, *args: object, **more: object) -> object:
        answer = store(self, *args, **more)  # type: ignore[arg-type]
        if len(lost) < 3:
            lost.append(1)
            raise DatabaseUnavailable("the reply was lost", hint="a test")
        return answer

    monkeypatch.setattr(CaptureStore, "store", losing)
    large.sql("insert into orders values (1)")
    large.catch_up()

    assert lost
    assert [key for _, key, _ in large.messages()] == ["1"]
    assert large.row.changes == 1
