"""SEC-4: what is not understood deletes, cancels and replays nothing. "All" is `all=true`, or a bare DELETE."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

import todoku
from tests.support.raw_http import Answer, ask
from tests.support.requesting import Requesting, answered
from tests.support.serving import Server, serving
from tests.support.world import World
from todoku.cli.main import cli
from todoku.engine.http import requests

TOKEN = "the-token-of-these-tests-0123456789"
JSON = "Content-Type: application/json"


@pytest.fixture
def requesting(world: World) -> Requesting:
    return Requesting(world)


@pytest.fixture
def server(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("TODOKU_TOKEN", TOKEN)
    box = todoku.App(world.url)
    with serving(box) as server:
        yield server
    box.close()


@pytest.fixture
def delete(server: Server) -> Callable[..., Answer]:
    """Send a DELETE, as bytes on a socket."""

    def deleted(target: str, *headers: str, body: bytes = b"") -> Answer:
        return ask(server.port, f"DELETE {target}", *headers, body=body, token=TOKEN)

    return deleted


def waiting(requesting: Requesting, ids: list[UUID]) -> int:
    """How many of these still wait."""
    found = [requests.get(requesting.outbox, id) for id in ids]
    return sum(one is not None and one.delivery.status == "pending" for one in found)


def dead(world: World) -> int:
    return len(world.deliveries(status="aborted"))


SLIPS = [
    "upstash-label=red", "Upstash-Label=red", "upstash-label=", "upstash-delay=1s&qstash_token=x", "QSTASH_TOKEN=x",
    "cursor=", "cursor=0", "cursor=12", "count=", "count=0", "count=-1", "count=1.5", "count=all", "all=false", "all=",
    "all=TRUE", "all=1", "All=true", "all", "&", "&&", "&qstash_token=x", "label=", "label", "limit=1", "%00=1",
    "all=true&label=red", "all=true&all=false", "count=1&colour=red",
]  # fmt: skip


@pytest.mark.parametrize("where", ["/v2/messages", "/v2/dlq"])
def test_a_query_that_is_not_understood_is_refused(
    requesting: Requesting, world: World, delete: Callable[..., Answer], where: str
) -> None:
    requesting.post()
    requesting.run(answered(500, dead=True))
    ids = [requesting.post() for _ in range(2)]
    answers = {slip: delete(f"{where}?{slip}") for slip in SLIPS}
    assert {slip: answer.status for slip, answer in answers.items() if answer.status != 422} == {}
    assert all(answer.json()["error"] for answer in answers.values())
    assert (waiting(requesting, ids), dead(world)) == (2, 1)


@pytest.mark.parametrize(
    "headers",
    [
        ("Content-Type: text/plain",), ("Content-Type: application/x-www-form-urlencoded",), ("Content-Type:",),
        ("Content-Type: application/json5",), ("Content-Type: text/plain", "Content-Length: 0"), (JSON,),
        ("Content-Type: application/problem+json",), (JSON, "Content-Type: text/plain"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("query", ["", "?all=true", "?count=10"])
def test_an_empty_body_that_was_announced_is_refused(
    requesting: Requesting, delete: Callable[..., Answer], headers: tuple[str, ...], query: str
) -> None:
    ids = [requesting.post() for _ in range(2)]
    for where in ("/v2/messages", "/v2/dlq"):
        assert delete(where + query, *headers).status in (400, 422)
    assert waiting(requesting, ids) == 2


def test_an_empty_body_in_chunks_is_refused(requesting: Requesting, server: Server) -> None:
    ids = [requesting.post() for _ in range(2)]
    sent = (
        f"DELETE /v2/messages HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    )
    assert b" 422 " in server.raw(sent.encode()).partition(b"\r\n")[0]
    assert waiting(requesting, ids) == 2


@pytest.mark.parametrize("query", ["", f"?qstash_token={TOKEN}", "?all=true", f"?all=true&qstash_token={TOKEN}"])
def test_all_is_said_by_nothing_or_by_all(requesting: Requesting, server: Server, query: str) -> None:
    """A bare DELETE is what the official client for Python sends for `cancel_all`."""
    ids = [requesting.post() for _ in range(3)]
    token = None if "qstash_token" in query else TOKEN
    answer = ask(server.port, f"DELETE /v2/messages{query}", token=token)
    assert (answer.status, answer.json()) == (200, {"cancelled": 3})
    assert waiting(requesting, ids) == 0


def test_count_limits_and_a_cursor_goes_on(requesting: Requesting, delete: Callable[..., Answer]) -> None:
    ids = [requesting.post(labels=("red",)) for _ in range(5)]
    first = delete("/v2/messages?count=2").json()
    assert first["cancelled"] == 2
    assert waiting(requesting, ids) == 3
    assert waiting(requesting, ids[:2]) == 0, "the oldest first"
    second = delete(f"/v2/messages?label=red&count=2&cursor={first['cursor']}").json()
    assert second["cancelled"] == 2
    assert delete(f"/v2/messages?all=true&count=2&cursor={second['cursor']}").json() == {"cancelled": 1}
    assert waiting(requesting, ids) == 0
    assert delete("/v2/messages?count=2&cursor=x").status == 422


def test_dead_letters_go_by_count_or_all_and_never_by_nothing(
    requesting: Requesting, world: World, delete: Callable[..., Answer], server: Server
) -> None:
    for _ in range(3):
        requesting.post()
    requesting.run(answered(500, dead=True))
    for target in ("", "?cursor=1.1", "?qstash_token=x"):
        assert delete(f"/v2/dlq{target}").status == 422
        assert ask(server.port, f"POST /v2/dlq/retry{target}", token=TOKEN).status == 422
    assert dead(world) == 3
    first = delete("/v2/dlq?count=1").json()
    assert (first["deleted"], dead(world)) == (1, 2)
    assert delete(f"/v2/dlq?all=true&count=1&cursor={first['cursor']}").json()["deleted"] == 1
    assert delete("/v2/dlq?all=true").json() == {"deleted": 1}


PATHS = ["/v2/schedules/{schedule}", "/v2/messages/{message}", "/v2/dlq/{dead}", "/v2/queues/mails", "/v2/topics/shops"]


def test_a_path_that_says_everything_takes_no_parameter_and_no_body(
    requesting: Requesting, world: World, server: Server, delete: Callable[..., Answer]
) -> None:
    """`DELETE /v2/topics/shops` with a list of endpoints would otherwise delete the whole group."""
    requesting.post()
    requesting.run(answered(500, dead=True))
    (dead_one,) = world.deliveries(status="aborted")
    named = {
        "schedule": "nightly", "message": str(requesting.post()), "dead": f"{dead_one.id}-0",
    }  # fmt: skip
    ask(server.port, "POST /v2/schedules/https://a.example/", "Upstash-Cron: 0 0 1 1 *", "Upstash-Schedule-Id: nightly",
        token=TOKEN)  # fmt: skip
    made = ask(server.port, "POST /v2/queues", JSON, body=b'{"queueName": "mails"}', token=TOKEN)
    group = json.dumps({"endpoints": [{"url": "https://a.example/"}, {"url": "https://b.example/"}]}).encode()
    ask(server.port, "POST /v2/topics/shops/endpoints", JSON, body=group, token=TOKEN)
    assert made.status == 200
    for path in (each.format(**named) for each in PATHS):
        for query in ("?label=red", "?upstash-label=red", "?&", "?all=true"):
            assert delete(path + query).status == 422, path + query
        assert delete(path, JSON, body=b'{"endpoints": [{"url": "https://a.example/"}]}').status == 422, path
        assert ask(server.port, f"GET {path}", token=TOKEN).status == 200, path
    assert delete("/v2/schedules").status == 405
    assert delete("/v2/topics/shops/endpoints?all=true", JSON, body=group).status == 422
    for path in (each.format(**named) for each in PATHS):
        assert delete(path).status == 200, path


@pytest.mark.parametrize("path", ["dead-letters/delete", "dead-letters/replay", "deliveries/cancel"])
def test_the_admin_api_is_about_everything_only_if_it_says_all(
    requesting: Requesting, world: World, server: Server, path: str
) -> None:
    requesting.post()
    requesting.run(answered(500, dead=True))
    ids = [requesting.post() for _ in range(2)]
    bodies = [b"", b"{}", b'{"why": "x"}', b'{"why": "x", "all": false}', b'{"why": "x", "topic": ""}',
              b'{"why": "x", "ids": []}', b'{"why": "x", "colour": "red", "all": true}', b'{"why": "x", "topic": null}',
              b'{"why": "x", "limit": 5}']  # fmt: skip
    for body in bodies:
        assert ask(server.port, f"POST /api/v1/{path}", JSON, body=body, token=TOKEN).status in (400, 422), body
    assert ask(server.port, f"POST /api/v1/{path}?all=true", JSON, body=b'{"why": "x"}', token=TOKEN).status == 422
    assert (waiting(requesting, ids), dead(world)) == (2, 1)


def test_a_delete_of_the_admin_api_takes_no_body(requesting: Requesting, world: World, server: Server) -> None:
    requesting.post()
    requesting.run(answered(500, dead=True))
    (one,) = world.deliveries(status="aborted")
    path = f"DELETE /api/v1/dead-letters/{one.id}?why=x"
    assert ask(server.port, path, JSON, body=b'{"dry_run": true}', token=TOKEN).status == 422
    assert ask(server.port, f"{path}&upstash-label=red", token=TOKEN).status == 422
    assert dead(world) == 1
    assert ask(server.port, path, token=TOKEN).status == 200


# ---------------------------------------------------------------------------------------- command line


def run(world: World, *words: str) -> Result:
    """The command line, in this process."""
    return CliRunner().invoke(cli, [*words, "--db", world.url, "--why", "a test"])


@pytest.mark.parametrize(
    "words",
    [
        ["replay"], ["cancel"], ["settle", "--as", "aborted"], ["clear", "--status", "pending"],
        ["clear", "--status", "aborted"], ["clear", "--status", "succeeded"], ["clear"], ["clear", "--all"],
        ["clear", "--status", "pending", "--topic", ""], ["clear", "--status", "pending", "--all", "--topic", "x"],
        ["cancel", "--all", "--topic", ""], ["cancel", "--all", "--queue", " "], ["replay", "--all", "--key", ""],
        ["replay", "--reason", ""], ["replay", ""], ["cancel", ""], ["schedule", "remove"], ["tokens", "revoke"],
        ["replay", "--topic", "order.created"],
    ],
)  # fmt: skip
def test_a_command_without_its_argument_changes_nothing(world: World, words: list[str]) -> None:
    world.publish(2)
    done = run(world, *words)
    assert done.exit_code == 2, done.output
    assert [row.status for row in world.deliveries()] == ["pending"] * 2


def test_a_command_that_says_all_does_all(world: World) -> None:
    world.publish(2)
    done = run(world, "clear", "--status", "pending", "--all")
    assert done.exit_code == 0, done.output
    assert world.deliveries() == []
