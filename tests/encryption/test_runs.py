"""Runs of encrypted workflows: what their steps keep is sealed, and their keys cannot be guessed (R13)."""

from __future__ import annotations

from tests.support.world import World
from todoku import App, Flow

SECRET = "4111-1111-1111-1111"


def charge(card: str) -> dict[str, str]:
    return {"charged": card}


def test_what_steps_keep_is_sealed_and_the_run_goes_on_with_it(box: App, world: World) -> None:
    @box.job(encrypted=True)
    async def pick(card: str) -> str:
        return f"picked for {card}"

    @box.workflow(encrypted=True)
    async def fulfil(ctx: Flow, card: str) -> str:
        paid = await ctx.step(charge, card)
        parts = await ctx.gather(pick.call(card))
        await ctx.wait("approval", bool)
        return f"{paid['charged']} {parts[0]}"

    run = fulfil.start(SECRET)
    box.drain()
    stored = world.sql("select step_key, arguments, result from todoku_step")
    assert len(stored) == 3
    assert SECRET not in repr(stored)
    box.signal(run, "approval", True, tx=None)
    box.drain()
    assert run.result(timeout=0) == f"{SECRET} picked for {SECRET}"


def test_the_digest_of_arguments_is_keyed(box: App, world: World) -> None:
    """R13: otherwise a reader of the database could try card numbers until a digest fits."""

    @box.workflow(encrypted=True)
    async def one(ctx: Flow) -> None:
        await ctx.step(charge, SECRET)

    @box.workflow
    async def plain(ctx: Flow) -> None:
        await ctx.step(charge, SECRET)

    one.start()
    plain.start()
    box.drain()
    keys = [key for (key,) in world.sql("select step_key from todoku_step")]
    assert len(set(keys)) == 2


def test_publishing_an_encrypted_event_is_the_same_step_after_a_wake_up(box: App) -> None:
    """R1: what is sealed differs each time; what was published does not."""
    seen: list[str] = []

    @box.on("card.charged")
    async def note(event: dict[str, str]) -> None:
        seen.append(event["card"])

    box.outbox.sealer.declare("card.charged")

    @box.workflow
    async def fulfil(ctx: Flow) -> None:
        await ctx.publish("card.charged", {"card": SECRET})
        await ctx.wait("approval", bool)

    run = fulfil.start()
    box.drain()
    box.signal(run, "approval", True, tx=None)
    box.drain()
    assert run.status() == "succeeded"
    assert seen == [SECRET]
