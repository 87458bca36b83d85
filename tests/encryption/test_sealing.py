"""Sealing and opening, as publishers and workers meet it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import date, timedelta

import pytest

import todoku
from tests.encryption.conftest import Boxes, new_key
from tests.support.world import World
from todoku.core.errors import InvalidAct
from todoku.core.sealed import kind_of
from todoku.engine.encryption.key_rotation import days, rotate, shred
from todoku.engine.encryption.sealer import Sealer, utc_today
from todoku.store.audit import Signed

SOMEBODY = Signed("ada", "a test")


def keys_of(world: World) -> list[tuple[str, str, str]]:
    rows = world.sql("select id, day, master_key_id from todoku_data_key order by seq")
    return [(str(id), day, master) for id, day, master in rows]


def job_of(box: todoku.App, seen: list[str]) -> todoku.Job[[str], str]:
    @box.job(encrypted=True, keep_result=True, max_attempts=2, backoff=todoku.table(0))
    async def greet(name: str) -> str:
        seen.append(name)
        return f"hello {name}"

    return greet


def reason_of(world: World) -> tuple[str, str | None]:
    (row,) = world.deliveries()
    return row.status, row.reason


# ------------------------------------------------------------------------------------------- declaring


def test_without_a_master_key_it_is_refused_where_it_is_declared(boxes: Boxes) -> None:
    box = boxes()
    with pytest.raises(todoku.InvalidSetting, match="generate"):

        @box.job(encrypted=True)
        def greet(name: str) -> None: ...

    with pytest.raises(todoku.InvalidSetting, match="no master key is configured"):
        box.event("person.moved", encrypted=True)
    with pytest.raises(todoku.InvalidSetting, match="everything is to be encrypted"):
        boxes(encrypt="all")


def test_a_consumer_does_not_say_it_the_event_does(box: todoku.App) -> None:
    with pytest.raises(todoku.InvalidSetting, match=r"@box.event\(topic, encrypted=True\)"):

        @box.on("person.moved", encrypted=True)
        def consume(event: object) -> None: ...


def test_everything_is_encrypted_if_the_setting_says_so(boxes: Boxes, world: World, old: str) -> None:
    box, seen = boxes(old, encrypt="all"), []

    @box.job
    def note(name: str) -> None:
        seen.append(name)

    note.enqueue("Ada")
    ((payload, kind),) = world.sql("select payload, content_type from todoku_message")
    assert (payload, kind_of(kind) is not None) == (None, True)
    box.drain()
    assert seen == ["Ada"]


def test_a_topic_is_encrypted_however_it_is_published(box: todoku.App, world: World) -> None:
    """The easy call is not the wrong one: `publish(topic, payload)` is sealed as the event is."""

    @box.event("person.moved", encrypted=True)
    @dataclass
    class Moved:
        name: str

    @box.on(Moved)
    def consume(event: Moved) -> None: ...

    box.publish("person.moved", {"name": "Ada"}, tx=None)
    box.publish(Moved("Ada"), tx=None)
    assert {payload for (payload,) in world.sql("select payload from todoku_message")} == {None}


def test_the_size_limit_is_that_of_the_plaintext(boxes: Boxes, old: str) -> None:
    greet = job_of(boxes(old, max_payload_bytes="20"), [])
    greet.enqueue("1234567")  # {"name":"1234567"} has 18 bytes, sealed it has more
    with pytest.raises(todoku.InvalidMessage, match="bytes"):
        greet.enqueue("1234567890")


# ---------------------------------------------------------------------------------------- transactions


def test_a_rollback_leaves_neither_message_nor_key_and_the_next_publish_is_whole(box: todoku.App, world: World) -> None:
    """I2, in the caller's own transaction and through the caller's own connection."""
    seen: list[str] = []
    greet = job_of(box, seen)
    connection = world.connect()
    greet.using(tx=connection).enqueue("undone")
    connection.rollback()
    assert (keys_of(world), world.sql("select count(*) from todoku_message")) == ([], [(0,)])
    with connection:
        greet.using(tx=connection).enqueue("done")
        greet.using(tx=connection).enqueue("and done")
    connection.close()
    assert len(keys_of(world)) == 1
    box.drain()
    assert sorted(seen) == ["and done", "done"], "in whatever order: they ran beside each other"


@pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)])
def test_two_open_transactions_do_not_wait_for_each_others_key(box: todoku.App, world: World) -> None:
    """The second would wait for the first's commit, and the first for the second's in the same thread: for ever.

    On SQLite there is one writer: the second waits, whatever it writes.
    """
    seen: list[str] = []
    greet, first, second = job_of(box, seen), world.connect(), world.connect()
    greet.using(tx=first).enqueue("one")
    greet.using(tx=second).enqueue("two")
    second.commit()
    first.commit()
    for connection in (first, second):
        connection.close()
    assert len(keys_of(world)) == 2, "each brought the key"
    assert len({id for id, _, _ in keys_of(world)}) == 1, "and it is the same one"
    box.drain()
    assert sorted(seen) == ["one", "two"]


def test_a_key_that_is_there_is_not_stored_again(box: todoku.App, world: World) -> None:
    greet = job_of(box, [])
    for name in ("one", "two", "three"):
        greet.enqueue(name)
    assert len(keys_of(world)) == 1


def test_every_day_has_a_key_of_its_own_and_so_has_every_so_many_messages(box: todoku.App, world: World) -> None:
    today = date(2026, 11, 16)
    box.outbox.sealer = Sealer(box.settings, today=lambda: today, most=2)
    greet = job_of(box, [])
    for _ in range(3):
        greet.enqueue("Ada")
    today += timedelta(days=1)
    greet.enqueue("Ada")
    assert [day for _, day, _ in keys_of(world)] == ["2026-11-16", "2026-11-16", "2026-11-17"]


def test_a_database_that_was_restored_without_the_key_gets_it_with_the_next_message(
    box: todoku.App, world: World
) -> None:
    """I1: a failover may lose the commit that stored the key; what is published after it can be opened."""
    seen: list[str] = []
    greet = job_of(box, seen)
    greet.enqueue("before")
    for table in ("todoku_data_key", "todoku_delivery", "todoku_message"):
        world.sql(f"delete from {table}")
    greet.enqueue("after")
    box.drain()
    assert seen == ["after"]


# ------------------------------------------------------------------------------------------ idempotency


def test_a_repetition_is_found_and_another_body_is_a_conflict_that_tells_nothing(box: todoku.App) -> None:
    greet = job_of(box, []).using(idempotency_key="k")
    assert not greet.enqueue("Ada").duplicate
    assert greet.enqueue("Ada").duplicate
    with pytest.raises(todoku.IdempotencyConflict) as conflict:
        greet.enqueue("Grace")
    assert "another body" in str(conflict.value)
    assert not {"Ada", "Grace", "name"} & set(str(conflict.value).split())


def test_a_repetition_is_found_with_a_new_master_key_in_front_and_when_the_old_one_is_gone(
    boxes: Boxes, old: str, new: str
) -> None:
    """Digests survive rotation: made with the oldest key there is, compared with those of all of them."""
    assert not job_of(boxes(old), []).using(idempotency_key="one").enqueue("Ada").duplicate
    both = job_of(boxes(new, old), [])
    assert both.using(idempotency_key="one").enqueue("Ada").duplicate
    only_new = job_of(boxes(new), [])
    assert not only_new.using(idempotency_key="two").enqueue("Ada").duplicate
    assert both.using(idempotency_key="two").enqueue("Ada").duplicate
    with pytest.raises(todoku.IdempotencyConflict, match="cannot be compared"):
        only_new.using(idempotency_key="one").enqueue("Ada")


def test_a_unique_job_is_unique_and_its_key_cannot_be_guessed(box: todoku.App, world: World) -> None:
    @box.job(encrypted=True, unique_for=60)
    def once(name: str) -> None: ...

    assert not once.enqueue("Ada").duplicate
    assert once.enqueue("Ada").duplicate
    assert not once.enqueue("Grace").duplicate
    digests = world.sql("select digest from todoku_ledger")
    assert all(digest.startswith("k1:2026-05:") for (digest,) in digests)


# ---------------------------------------------------------------------------------------------- opening


def test_swapped_ciphertexts_open_nowhere(box: todoku.App, world: World) -> None:
    """Associated data binds a ciphertext to its row: the payload of one message is none of another's."""
    seen: list[str] = []
    greet = job_of(box, seen)
    one, two = greet.enqueue("Ada"), greet.enqueue("Grace")
    ((first,), (second,)) = world.sql("select payload_bytes from todoku_message order by seq")
    world.sql("update todoku_message set payload_bytes = ? where id = ?", second, str(one.id))
    world.sql("update todoku_message set payload_bytes = ? where id = ?", first, str(two.id))
    box.drain()
    assert seen == []
    assert {(row.status, row.reason, row.attempts) for row in world.deliveries()} == {("aborted", "BAD_CIPHERTEXT", 1)}


@pytest.mark.parametrize("change", ["truncated", "flipped", "nothing", "another topic"])
def test_what_was_changed_is_not_run_and_not_retried(box: todoku.App, world: World, change: str) -> None:
    seen: list[str] = []
    greet = job_of(box, seen)
    greet.enqueue("Ada")
    ((raw,),) = world.sql("select payload_bytes from todoku_message")
    changed = {"truncated": raw[:-1], "flipped": raw[:-1] + bytes([raw[-1] ^ 1]), "nothing": b""}.get(change, raw)
    topic = "elsewhere" if change == "another topic" else "greet"
    world.sql("update todoku_message set payload_bytes = ?, topic = ?", changed, topic)
    box.drain()
    assert seen == []
    assert reason_of(world) == ("aborted", "BAD_CIPHERTEXT")


def test_a_swapped_result_is_not_given_to_anybody(box: todoku.App, world: World) -> None:
    greet = job_of(box, [])
    one, two = greet.enqueue("Ada"), greet.enqueue("Grace")
    box.drain()
    assert (one.result(timeout=0), two.result(timeout=0)) == ("hello Ada", "hello Grace")
    (first, second) = world.sql("select delivery_id, result from todoku_result order by delivery_id")
    world.sql("delete from todoku_result where delivery_id = ?", first[0])
    world.sql("update todoku_result set delivery_id = ? where delivery_id = ?", first[0], second[0])
    with pytest.raises(todoku.CannotOpen) as refused:
        one.result(timeout=0)
    assert refused.value.reason == "BAD_CIPHERTEXT"


def test_results_are_opened_for_async_code_too(box: todoku.App) -> None:
    greet = job_of(box, [])

    async def there() -> str:
        handle = await greet.aenqueue("Ada")
        await box.adrain()
        return await handle.aresult(timeout=0)

    assert asyncio.run(there()) == "hello Ada"


def test_a_master_key_that_is_not_here_is_worth_another_attempt(boxes: Boxes, world: World, old: str, new: str) -> None:
    """A deploy may bring it."""
    job_of(boxes(old), []).enqueue("Ada")
    seen: list[str] = []
    without = boxes(new)
    job_of(without, seen)
    without.drain(limit=1)
    assert reason_of(world) == ("failed", "UNKNOWN_MASTER_KEY")
    with_both = boxes(new, old)
    job_of(with_both, seen)
    with_both.drain()
    assert seen == ["Ada"]


def test_other_bytes_under_the_same_id_open_nothing(boxes: Boxes, world: World, old: str) -> None:
    job_of(boxes(old), []).enqueue("Ada")
    wrong = boxes(new_key("2026-05"))
    job_of(wrong, [])
    wrong.drain(limit=1)
    assert reason_of(world) == ("failed", "BAD_MASTER_KEY")


# ------------------------------------------------------------------------------------- rotate and shred


def test_after_a_rotation_the_old_master_key_is_not_needed(boxes: Boxes, world: World, old: str, new: str) -> None:
    job_of(boxes(old), []).enqueue("Ada")
    both = boxes(new, old)
    assert rotate(both.store.data_keys, both.settings.master_keys, SOMEBODY, dry_run=True).number == 1
    done = rotate(both.store.data_keys, both.settings.master_keys, SOMEBODY)
    assert (done.number, done.strangers) == (1, ())
    assert {master for _, _, master in keys_of(world)} == {"2026-11"}
    assert rotate(both.store.data_keys, both.settings.master_keys, SOMEBODY).number == 0
    seen: list[str] = []
    only_new = boxes(new)
    job_of(only_new, seen)
    only_new.drain()
    assert seen == ["Ada"]


def test_a_key_of_a_stranger_is_passed_over_and_told(boxes: Boxes, old: str, new: str) -> None:
    job_of(boxes(old), []).enqueue("Ada")
    stranger = boxes(new)
    done = rotate(stranger.store.data_keys, stranger.settings.master_keys, SOMEBODY)
    assert (done.number, done.strangers) == (0, ("2026-05",))


def test_shredding_a_day_leaves_its_messages_and_results_unreadable_for_ever(box: todoku.App, world: World) -> None:
    yesterday = utc_today() - timedelta(days=1)
    box.outbox.sealer = Sealer(box.settings, today=lambda: yesterday)
    seen: list[str] = []
    greet = job_of(box, seen)
    done = greet.enqueue("Ada")
    box.drain()
    greet.enqueue("Grace")
    box.outbox.sealer = Sealer(box.settings)
    box.outbox.sealer.declare("greet")
    today = greet.enqueue("Hedy")
    chosen = days(day=yesterday, before=None, today=utc_today())
    keys = box.store.data_keys
    assert shred(keys, chosen, SOMEBODY, dry_run=True).unfinished == 1
    with pytest.raises(InvalidAct, match="1 unfinished"):
        shred(keys, chosen, SOMEBODY)
    found = shred(keys, chosen, SOMEBODY, force=True)
    assert (found.keys, found.unfinished, found.dead) == (1, 1, 0)
    box.outbox.opener._keys.clear()  # what a process remembers, it forgets within a minute
    box.drain()
    assert reason_of(world) == ("aborted", "SHREDDED")
    assert (seen, today.result(timeout=0)) == (["Ada", "Hedy"], "hello Hedy")
    with pytest.raises(todoku.CannotOpen) as refused:
        done.result(timeout=0)
    assert refused.value.reason == "SHREDDED"
    assert done.status() is todoku.Status.SUCCEEDED, "how it ended is no secret"
    assert shred(keys, chosen, SOMEBODY).keys == 0


def test_what_is_in_use_is_not_shredded() -> None:
    today = date(2026, 11, 16)
    for wrong in ({"day": today, "before": None}, {"day": None, "before": today + timedelta(days=1)}):
        with pytest.raises(InvalidAct, match="in use"):
            days(**wrong, today=today)
    with pytest.raises(InvalidAct, match="which days"):
        days(day=None, before=None, today=today)
    assert days(day=None, before=today, today=today).before == "2026-11-16"


# ------------------------------------------------------------------------------------------- by its id


def test_an_encrypted_job_is_read_by_its_id_and_runs_again_encrypted(
    box: todoku.App, boxes: Boxes, old: str, world: World
) -> None:
    """The new message is sealed for its own id: bytes that were copied could not be opened."""
    seen: list[str] = []
    greet = job_of(box, seen)
    first = greet.enqueue("ada")
    box.drain()
    assert job_of(boxes(old), []).handle(first.id).result(timeout=0) == "hello ada"
    again = greet.handle(first.id).replay(by="ada", why="a test", again=True)
    story = world.store.messages.story(again.id)
    assert story is not None
    assert kind_of(story.message.content_type) is not None
    box.drain()
    assert (again.result(timeout=0), seen) == ("hello ada", ["ada", "ada"])
    bare = boxes()
    ((why, number),) = bare.replay(first.id, by="ada", why="a test", again=True).skipped.items()
    assert ("master key" in why, number) == (True, 1)
