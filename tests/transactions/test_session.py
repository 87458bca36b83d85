"""MEND-1: on a connection that is not ours we change no setting; in a handler's transaction only for our own part."""

from __future__ import annotations

import pytest

from tests.support.world import World
from tests.transactions.callers import KINDS, Caller
from todoku import App, Context

on_postgresql = pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=kind.__name__) for kind in KINDS if kind.backend == "postgres"], indirect=True
)
_SEEN = "insert into seen select '{moment}', name, setting from pg_settings"


@pytest.mark.postgres
@on_postgresql
def test_publishing_leaves_every_setting_of_the_caller_s_session(shop: World, box: App, caller: Caller) -> None:
    """Every row of pg_settings is the same before a publish, after it in the same transaction, and in the next one."""
    shop.sql("drop table if exists seen; create table seen (moment text, name text, setting text)")
    caller.begin()
    caller.execute(_SEEN.format(moment="before"))
    caller.publish(box, "order.created", {"n": 1}, idempotency_key="once")
    caller.publish(box, "stock.moved", {"n": 2}, key="in a lane", delay=60)
    caller.publish_many(box, [("order.created", {"n": 3}), ("order.paid", {"n": 4})])
    caller.execute(_SEEN.format(moment="after"))
    caller.commit()
    caller.begin()
    caller.execute(_SEEN.format(moment="later"))
    caller.commit()
    assert shop.sql("select moment, count(*) > 300 from seen group by 1 order by 1") == [
        ("after", True), ("before", True), ("later", True),
    ]  # fmt: skip
    changed = "select name, array_agg(distinct setting) from seen group by name having count(distinct setting) > 1"
    assert shop.sql(changed) == []


@pytest.mark.postgres
def test_only_our_own_part_of_a_handler_s_transaction_has_our_plans(postgres_url: str) -> None:
    """The handler, and constraints of its tables that are checked at commit, run under the settings of the session;
    the settle in between does not, so that a server with LLVM does not compile it."""
    world = World("postgres", postgres_url)
    world.store.migrate()
    names = "array[current_setting('jit'), current_setting('enable_seqscan'), current_setting('enable_bitmapscan')]"
    world.sql(f"""
        create table seen (part text, settings text[]);
        create table shop_order (id integer);
        create function note() returns trigger language plpgsql
            as $$ begin insert into seen values (tg_argv[0], {names}); return null; end $$;
        create constraint trigger at_commit after insert on shop_order deferrable initially deferred
            for each row execute function note('constraint');
        create trigger settled after delete on todoku_delivery for each row execute function note('settle');
    """)
    box = App(postgres_url)

    @box.job(transactional=True)
    def pay(ctx: Context, id: int) -> None:
        ctx.tx.execute("set local jit = on")
        ctx.tx.execute(f"insert into seen select 'handler', {names}")
        ctx.tx.execute("insert into shop_order values (%s)", (id,))

    handle = pay.enqueue(1)
    box.drain()
    assert handle.status() == "succeeded"
    box.close()
    theirs = ["on", "on", "on"]
    assert world.sql("select part, settings from seen order by part") == [
        ("constraint", theirs), ("handler", theirs), ("settle", ["off", "off", "off"]),
    ]  # fmt: skip
    world.close()
