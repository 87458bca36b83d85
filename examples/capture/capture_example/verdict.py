"""`python -m capture_example.verdict`: what each place got, beside the shop's table. PASS or FAIL, with numbers.

Of each order a place must have every revision once it was captured, in order, and end with what the table has. A
message that came twice counts once, by its id.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import psycopg

import todoku
from capture_example.arrivals import Arrival, noted
from capture_example.settings import KAFKA_TOPIC, Settings, read_settings

ORDERS = "select id, revision from orders"
PARTITIONS = 3


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One place."""

    place: str
    changes: int
    orders: int
    differences: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether it has everything, in order."""
        return not self.differences

    def line(self) -> str:
        """For people."""
        word = "PASS" if self.passed else "FAIL"
        shown = "".join(f"\n  {one}" for one in self.differences[:10])
        return f"{word} {self.place}: {self.changes} changes of {self.orders} orders, in order by key{shown}"


def judge(place: str, arrivals: Sequence[Arrival], table: dict[int, int]) -> Verdict:
    """Compare. `table`: the revision of each order that the shop has."""
    seen: set[str] = set()
    lives: dict[int, list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        if arrival.message not in seen:
            seen.add(arrival.message)
            lives[arrival.order].append(arrival)
    differences = [f"order {id} never arrived" for id in sorted(table.keys() - lives.keys())]
    for id, life in sorted(lives.items()):
        if (why := _difference(life, table.get(id))) is not None:
            differences.append(f"order {id}: {why}")
    return Verdict(place=place, changes=len(seen), orders=len(lives), differences=tuple(differences))


def _difference(life: Sequence[Arrival], revision: int | None) -> str | None:
    ops = [arrival.change["op"] for arrival in life]
    rows = [arrival.change["row"] for arrival in life]
    revisions = [row["revision"] for row in rows if row is not None]
    if "delete" in ops[:-1] or (ops[-1] == "delete") != (revision is None):
        return f"{ops}, and the table {'has it' if revision is not None else 'does not have it'}"
    steps = [after - before for before, after in itertools.pairwise(revisions)]
    # A row that a snapshot found may have come by the stream before: then its revision stands there twice.
    if any(step != 1 and not (step == 0 and "snapshot" in ops) for step in steps):
        return f"revisions {revisions}"
    if revision is not None and revisions[-1] != revision:
        return f"revision {revisions[-1]}, and the table has {revision}"
    return None


async def from_kafka(servers: str) -> list[Arrival]:
    """Everything in the topic, each partition from its beginning."""
    from aiokafka import AIOKafkaConsumer, TopicPartition  # noqa: PLC0415 - only where there is a Kafka

    consumer = AIOKafkaConsumer(bootstrap_servers=servers)
    await consumer.start()
    try:
        parts = [TopicPartition(KAFKA_TOPIC, number) for number in range(PARTITIONS)]
        consumer.assign(parts)
        await consumer.seek_to_beginning(*parts)
        ends = await consumer.end_offsets(parts)
        found: list[Arrival] = []
        for part in parts:
            while await consumer.position(part) < ends[part]:
                for records in (await consumer.getmany(part, timeout_ms=2000)).values():
                    found += [_arrival(record.headers, record.value) for record in records]
        return found
    finally:
        await consumer.stop()


def _arrival(headers: Sequence[tuple[str, bytes]], value: bytes) -> Arrival:
    return Arrival(dict(headers)["ce_id"].decode(), msgspec.json.decode(value))


def judge_all(settings: Settings) -> list[Verdict]:
    """The handler, the webhook, and Kafka if there is one."""
    with psycopg.connect(settings.shop) as connection:
        table = {int(id): int(revision) for id, revision in connection.execute(ORDERS)}
    verdicts = [judge(name, noted(settings.arrivals / f"{name}.jsonl"), table) for name in ("handler", "webhook")]
    if settings.kafka is not None:
        verdicts.append(judge("kafka", asyncio.run(from_kafka(settings.kafka)), table))
    return verdicts


def main() -> int:
    """Returns 0 if every place has everything, else 1."""
    try:
        verdicts = judge_all(read_settings(os.environ))
    except todoku.InvalidSetting as error:
        sys.stderr.write(f"verdict: {error}\n")
        return 2
    for verdict in verdicts:
        sys.stdout.write(f"{verdict.line()}\n")
    return 0 if all(verdict.passed for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
