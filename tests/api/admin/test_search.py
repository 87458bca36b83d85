"""Search over HTTP: rows with why they wait, roles for masked fields, suggestions, and clear refusals."""

from __future__ import annotations

import pytest

from tests.support.serving import Server
from tests.support.world import SOMEBODY, World, aborted
from todoku.store.deliveries import Filter


def search(server: Server, text: str, **more: object) -> dict[str, object]:
    found: dict[str, object] = server.ask("GET", "/search", params={"q": text, **more})  # type: ignore[arg-type]
    return found


def test_rows_have_the_first_cause_why_they_wait(server: Server, world: World) -> None:
    world.publish(1)
    world.settle(world.claim(world.worker()))
    world.publish(1)
    world.settle(world.claim(world.worker()), aborted("REFUSED"))
    world.publish(1)
    world.store.queues.pause("warehouse", SOMEBODY, paused=True)
    found = server.ask("GET", "/search", scope="read")
    waiting, dead, done = found["items"]
    assert [waiting["why"][name] for name in ("cause", "text", "hint")] == [
        "paused", "the queue warehouse is paused", "todoku resume warehouse",
    ]  # fmt: skip
    assert (dead["why"]["cause"], dead["delivery"]["reason"]) == ("aborted", "REFUSED")
    assert (done["why"], done["delivery"]["status"]) == (None, "succeeded")
    assert (found["looked_at"], found["sealed"], found["complete"], found["next"]) == (3, 0, True, None)


def test_the_cost_of_why_does_not_depend_on_how_many_rows_wait(
    server: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def queries(number: int) -> int:
        ran: list[str] = []
        kind = type(world.store.database.read(lambda tx: tx))
        rows = kind.rows

        def counted(self: object, query: str, /, **values: object) -> object:
            ran.append(query)
            return rows(self, query, **values)

        with monkeypatch.context() as patched:
            patched.setattr(kind, "rows", counted)
            assert len(server.ask("GET", "/search", params={"limit": number})["items"]) == number
        return len(ran)

    world.publish(30)
    world.publish(30, key="k", ordered=True)
    queries(1)  # the token is known from here on
    assert queries(5) == queries(50) < 20


def test_pages_follow_each_other(server: Server, world: World) -> None:
    world.publish(5, topic="order.created")
    first = search(server, "topic:order.*", limit=3)
    rest = search(server, "topic:order.*", limit=3, cursor=first["next"])
    assert [len(page["items"]) for page in (first, rest)] == [3, 2]  # type: ignore[arg-type]
    assert rest["next"] is None


def test_a_bare_word_is_an_id_a_key_a_label_or_a_part_of_an_error(server: Server, world: World) -> None:
    (keyed,) = world.publish(1, key="key-1")
    (labelled,) = world.publish(1, labels=["red"])
    world.publish(1, to=["bank"])
    world.settle(world.claim(world.worker(), destinations=["bank"]), aborted("REFUSED"))
    world.sql("update todoku_delivery set error = 'no such card' where status = 'aborted'")
    (dead,) = world.deliveries(status="aborted")

    def only(text: str) -> tuple[object, list[str]]:
        found = server.ask("GET", "/search", params={"q": text})
        (row,) = found["items"]
        return row["delivery"]["message_id"], found["notes"]

    assert only("key-1") == (str(keyed.id), ["'key-1' is a key"])
    assert only("red") == (str(labelled.id), ["'red' is a label"])
    assert only('"such card"')[0] == str(dead.message_id)
    assert "errors were searched" in only('"such card"')[1][0]
    assert only(str(dead.id)) == (str(dead.message_id), [])
    assert only(str(keyed.id)) == (str(keyed.id), [])


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"q": "colour:red"}, "there is no word 'colour'"),
        ({"q": "status:dead"}, "pending, sending, succeeded, failed, aborted"),
        ({"q": "-status:failed"}, "cannot be excluded"),
        ({"q": "worker:none"}, "no worker 'none' is alive"),
        ({"q": "x" * 1001}, "q"),
        ({"q": "a", "cursor": "x"}, "cursor"),
        ({"limit": "0"}, "limit"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_search_is_refused_with_what_is_possible(server: Server, params: dict[str, str], told: str) -> None:
    assert told in server.ask("GET", "/search", params=params, status=422)["detail"]


def test_masked_fields_and_headers_are_for_an_admin(server: Server, world: World) -> None:
    world.publish(1, payload=lambda _: {"email": "ada@example.com", "order": 7}, headers={"Authorization": "Bearer x"})
    for text in ("payload.email:ada@example.com", 'header.authorization:"Bearer x"', "payload.card.number:1"):
        refused = server.ask("GET", "/search", params={"q": text}, scope="read", status=422)
        assert "is masked" in refused["detail"]
        server.ask("GET", "/search", params={"q": text}, scope="operate", status=422)
    assert len(search(server, "payload.email:ada@example.com")["items"]) == 1  # type: ignore[arg-type]
    assert len(server.ask("GET", "/search", params={"q": "payload.order:7"}, scope="read")["items"]) == 1


def test_a_worker_is_found_by_its_name(server: Server, world: World) -> None:
    world.publish(2)
    (held,) = world.claim(world.worker(name="box-7"), 1)
    (row,) = server.ask("GET", "/search", params={"q": "worker:box-7"})["items"]
    assert row["delivery"]["id"] == held.id


def test_suggestions_are_names_then_known_values(server: Server, world: World) -> None:
    world.publish(1, topic="order.paid", labels=["payload.order_id:42", "size:7"])

    def words(text: str) -> list[str]:
        return [item["word"] for item in server.ask("GET", "/suggestions", params={"q": text}, scope="read")["items"]]

    assert words("st") == ["status:"]
    assert {"topic:", "payload.", "payload.order_id:"} <= set(words(""))
    assert words("status:a") == ["status:aborted"]
    assert words("topic:") == ["topic:order.paid"]
    assert words("queue:w") == ["queue:warehouse"]
    assert words("label:") == ["label:size:"], "values of payload fields are not told"
    assert words("payload.order_id:") == []
    (one,) = server.ask("GET", "/suggestions", params={"q": "queue:warehouse topic:or"})["items"]
    assert one["query"] == "queue:warehouse topic:order.paid"


def test_a_search_needs_the_scope_read(server: Server) -> None:
    server.ask("GET", "/search", scope="publish", status=403)
    server.ask("GET", "/suggestions", scope="publish", status=403)


def test_nothing_is_changed_by_a_search(server: Server, world: World) -> None:
    world.publish(1)
    before = world.store.deliveries.find(Filter()).items
    search(server, "status:pending")
    assert world.store.deliveries.find(Filter()).items == before
