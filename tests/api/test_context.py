"""What a handler sees of its delivery."""

from __future__ import annotations

import todoku
from tests.support.world import World


def test_a_handler_sees_the_number_that_people_see_and_its_priority(box: todoku.App, world: World) -> None:
    @box.job(keep_result=True)
    def look(ctx: todoku.Context) -> list[int]:
        return [ctx.delivery_id, ctx.priority]

    handles = [look.using(priority=priority).enqueue() for priority in (0, 15)]
    shown = {delivery.message_id: [delivery.id, delivery.priority] for delivery in world.deliveries()}
    box.drain()
    assert [handle.result(timeout=5) for handle in handles] == [shown[handle.id] for handle in handles]
