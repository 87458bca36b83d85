"""An App that publishes a text in every way, runs it, and says by their digests what arrived.

`python -m tests.encryption TEXT` runs it; the processes of its handlers import it from here.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import todoku
from todoku.engine.publish import MessageOptions

box = todoku.App(os.environ["TODOKU_DATABASE"])
arrived: dict[str, str] = {}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@box.job(encrypted=True, keep_result=True)
async def in_loop(name: str) -> dict[str, str]:
    await asyncio.sleep(0)
    return {"seen": name}


@box.job(encrypted=True, keep_result=True)
def in_thread(name: str) -> dict[str, str]:
    return {"seen": name}


@box.job(encrypted=True, keep_result=True, run="process")
def in_process(name: str) -> dict[str, str]:
    return {"seen": name}


@box.job(encrypted=True, keep_result=True, transactional=True)
def in_transaction(name: str) -> dict[str, str]:
    return {"seen": name}


@box.job(encrypted=True, max_attempts=1)
def fails_in_thread(name: str) -> None:
    raise ValueError(f"cannot take {name}")


@box.job(encrypted=True, max_attempts=1)
async def fails_in_loop(ctx: todoku.Context, name: str) -> None:
    try:
        raise KeyError(name)
    except KeyError as error:
        ctx.log.error("it failed", exc_info=True)  # noqa: G201 - todoku's own logger
        raise todoku.Retry(reason="BUSY", detail=f"busy with {name}") from error


@box.job(encrypted=True, max_attempts=1, run="process")
def fails_in_process(name: str) -> None:
    raise RuntimeError(name)


@box.job(encrypted=True, max_attempts=1, transactional=True)
def fails_in_transaction(name: str) -> None:
    raise todoku.Abort("REFUSED", name)


@box.job(encrypted=True, max_attempts=1)
def never_decodes(number: int) -> None: ...


@box.event("person.moved", key="id", encrypted=True)
@dataclass
class Moved:
    id: int
    name: str


@box.on(Moved, keep_result=True)
def consumes(event: Moved) -> str:
    arrived["consumer"] = digest(event.name)
    return event.name


class Sender:
    """A destination that notes what it is sent."""

    name = "sender"

    async def send(self, batch: Any) -> None:
        for message in batch:
            assert message.content_type == "application/json"
            arrived["sender"] = digest(json.loads(message.payload)["name"])


box.route("person.*", to=Sender())


def by_function(message: todoku.Outgoing) -> None:
    arrived["function"] = digest(json.loads(message.payload)["name"])


box.route("person.*", to=by_function)


@box.on("raw.bytes", keep_result=True)
def takes_bytes(event: Any) -> str:
    arrived["bytes"] = digest(event.decode())
    return event.decode()  # type: ignore[no-any-return]


box.outbox.sealer.declare("raw.bytes")


def main(text: str) -> dict[str, Any]:
    """Publish, run, and tell."""
    jobs = [in_loop, in_thread, in_process, in_transaction]
    handles = {job.name: job.using(idempotency_key=job.name).enqueue(text) for job in jobs}
    for job in (fails_in_loop, fails_in_thread, fails_in_process, fails_in_transaction):
        job.enqueue(text)
    draft = box.outbox.draft("never_decodes", {"number": text}, MessageOptions(), [never_decodes.route])
    box.outbox.put([draft], None, twin="")
    box.publish(Moved(7, text), tx=None)
    box.publish("raw.bytes", text.encode(), tx=None)
    box.drain()
    results = {name: digest(handle.result(timeout=0)["seen"]) for name, handle in handles.items()}
    errors = {group.destination: f"{group.reason}: {group.error}" for group in box.store.statistics.dead_letters()}
    return {"results": results, "arrived": arrived, "errors": errors, "tracebacks": dict(_tracebacks())}


def _tracebacks() -> Iterator[tuple[str, str]]:
    for dead in box.deliveries.find(status="aborted").items:
        for attempt in box.handle(dead.id).attempts():
            if attempt.traceback is not None:
                yield dead.destination, attempt.traceback
