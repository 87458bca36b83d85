"""One message alone and messages in a batch take different statements on PostgreSQL; their rows are the same (R16)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.world import World
from todoku.app import new_id
from todoku.core.limit import Limit
from todoku.core.message import Draft
from todoku.core.topic_pattern import Route
from todoku.engine.publish import MessageOptions, draft

MESSAGE = "topic, type, key, payload, payload_bytes, content_type, headers, labels, scope, key_hash, digest"
DELIVERY = (
    "destination, queue, lane, gate, priority, status, attempts, max_attempts, lost, snoozes, replay_count, epoch,"
    " timeout, reason"
)

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
SCALAR = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
)
PAYLOAD = st.recursive(SCALAR, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=6)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "key": TEXT.filter(bool),
        "idempotency_key": st.uuids().map(str),
        "unique_for": st.just(60.0),
        "delay": st.floats(0, 1e6),
        "expires": st.floats(1, 1e6),
        "priority": st.integers(0, 15),
        "headers": st.dictionaries(TEXT.filter(lambda name: name.strip() != ""), TEXT, max_size=2),
        "labels": st.lists(TEXT, max_size=2),
    },
)
AT = st.none() | st.integers(0, 4_000_000_000).map(lambda at: datetime.fromtimestamp(at, UTC))
ROUTE = st.builds(
    Route,
    pattern=st.just("**"),
    destination=st.sampled_from(["warehouse", "mail", "ÄÖ"]),
    queue=st.sampled_from(["default", "other"]),
    ordered=st.booleans(),
    max_attempts=st.integers(1, 99),
    timeout=st.none() | st.floats(0.001, 1e5),
)
GATED = st.just(Route(pattern="**", destination="gated", queue="gated", per_key=Limit(concurrency=2)))


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """A draft as any publisher may make it: to no destination (a dead letter), to one, or to several."""
    options: dict[str, Any] = draw(OPTIONS)
    if "delay" not in options:
        options["at"] = draw(AT)
    if "idempotency_key" in options or not draw(st.booleans()):
        options.pop("unique_for", None)
    payload = draw(PAYLOAD | st.binary(max_size=20))
    routes = draw(st.lists(ROUTE | GATED, max_size=2))
    made = MessageOptions(**options)
    return draft(new_id(), "order.made", payload, made, routes, max_payload_bytes=1 << 20, no_route="dead_letter")


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=drafts(), second=drafts(), again=st.booleans())
def test_R16_a_batch_stores_the_rows_that_its_messages_have_alone(
    world: World, first: Draft, second: Draft, again: bool
) -> None:
    world.sql("delete from todoku_ledger")  # a key is free for the batch, too
    several = [first, second, replace(first, id=new_id(), idempotency=None)] if again else [first, second]
    for each in several:
        world.store.run(world.steps([each]))
    world.sql("delete from todoku_ledger")
    batch = [replace(each, id=new_id()) for each in several]
    world.store.run(world.steps(batch))
    for alone, together in zip(several, batch, strict=True):
        assert rows(world, together) == rows(world, alone)


def rows(world: World, made: Draft) -> list[Any]:
    """All columns of a message and of its deliveries, but for numbers; times relative to the message's own."""
    own = f"m.id = '{made.id}'"
    postgres = world.backend == "postgres"
    after = "extract(epoch from d.{0} - m.created_at)" if postgres else "(d.{0} - m.created_at)"
    due = "d.next_run_at" if made.at is not None else after.format("next_run_at")
    ends = "d.expires_at" if made.expires is None else after.format("expires_at")
    columns = ", ".join(f"d.{name.strip()}" for name in DELIVERY.split(","))
    as_hex = "encode(m.payload_bytes, 'hex')" if postgres else "hex(m.payload_bytes)"
    names = [name.strip() for name in MESSAGE.split(",")]
    as_text = ", ".join(as_hex if name == "payload_bytes" else f"cast(m.{name} as text)" for name in names)
    return [
        *world.sql(f"select {as_text} from todoku_message m where {own}"),
        *world.sql(
            f"select {columns}, cast({due} as text), cast({ends} as text)"
            " from todoku_delivery d join todoku_message m on m.seq = d.message_seq"
            f" where {own} order by d.id"
        ),
        *world.sql(
            f"select l.label from todoku_label l join todoku_message m on m.seq = l.message_seq where {own} order by 1"
        ),
    ]
