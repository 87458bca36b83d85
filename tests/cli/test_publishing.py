"""Putting work in from the command line: publish a topic, enqueue a job, with the words of the Python API."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.program import Shop, misused, refused, rows, said

APP = """
import todoku

box = todoku.App()
box.route("order.*", to="warehouse", ordered=True)

@box.job(queue="mail", max_attempts=4)
async def welcome(user_id: int, hobby: str | None = None) -> str:
    return "sent"
"""


@pytest.fixture
def app(shop: Shop, tmp_path: Path) -> Shop:
    """A shop with an App in the working directory, called shop:box."""
    (tmp_path / "shop.py").write_text(APP)
    return shop


# ----------------------------------------------------------------------------------------------- publish


def test_publish_goes_where_the_apps_routes_lead(app: Shop) -> None:
    (row,) = rows(app.run("publish", "order.created", '{"n": 1}', "--key", "k", "--app", "shop:box", "--json"))
    assert list(row) == ["id", "topic", "duplicate", "created"]
    (delivery,) = app.world.deliveries()
    assert (str(delivery.message_id), delivery.destination, delivery.key) == (row["id"], "warehouse", "k")
    assert delivery.lane is not None
    assert said(app.run("publish", "order.created", "--app", "shop:box")) == [
        str(app.world.deliveries()[-1].message_id)
    ]


@pytest.mark.parametrize("where", ["argument", "environment", "pyproject"])
def test_the_app_is_named_in_three_ways(app: Shop, tmp_path: Path, where: str) -> None:
    arguments, environ = [], {}
    match where:
        case "argument":
            arguments = ["--app", "shop:box"]
        case "environment":
            environ = {"TODOKU_APP": "shop:box"}
        case _:
            (tmp_path / "pyproject.toml").write_text('[tool.todoku]\napp = "shop:box"\n')
    said(app.run("publish", "order.created", *arguments, **environ))
    assert len(app.statuses()) == 1


def test_publish_takes_the_options_of_a_message(app: Shop) -> None:
    done = app.run(
        "publish", "order.created", '{"n": 1}', "--app", "shop:box", "--priority", "5", "--delay", "1h30m",
        "--max-attempts", "2", "--idempotency-key", "u7",
    )  # fmt: skip
    (delivery,) = app.world.deliveries()
    assert said(done) == [str(delivery.message_id)]
    assert (delivery.priority, delivery.max_attempts) == (5, 2)
    assert delivery.created_at is not None
    assert 5399 < (delivery.next_run_at - delivery.created_at).total_seconds() < 5401
    again = app.run("publish", "order.created", '{"n": 1}', "--app", "shop:box", "--idempotency-key", "u7")
    assert said(again) == [f"{delivery.message_id} (already published)"]
    other = app.run("publish", "order.created", '{"n": 2}', "--app", "shop:box", "--idempotency-key", "u7")
    assert "was used" in refused(other)
    said(app.run("publish", "order.paid", "--app", "shop:box", "--at", "2099-01-01T00:00:00+02:00"))
    assert app.world.deliveries()[-1].next_run_at.isoformat() == "2098-12-31T22:00:00+00:00"


def test_publish_to_a_destination_needs_no_app(app: Shop) -> None:
    said(app.run("publish", "anything.at.all", '"text"', "--to", "mail"))
    said(app.run("publish", "anything.at.all", "-", "--to", "warehouse", "--app", "shop:box", stdin='{"n": 1}'))
    first, second = app.world.deliveries()
    assert (first.destination, first.queue, first.max_attempts) == ("mail", "mail", 6)
    assert (second.destination, second.topic) == ("warehouse", "anything.at.all")


def test_publish_that_leads_nowhere_is_refused(app: Shop) -> None:
    assert "name your App with --app, or pass --to" in refused(app.run("publish", "order.created"))
    assert "no route takes 'user.created'" in refused(app.run("publish", "user.created", "--app", "shop:box"))
    assert app.statuses() == {}


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        (["order.created", "{"], "this is not valid JSON"),
        (["no topic", "--to", "x"], "is not a topic"),
        (["order.created", "--to", "x", "--at", "2026-01-01"], "has no time zone"),
        (["order.created", "--to", "x", "--at", "tomorrow"], "is not a time"),
        (["order.created", "--to", "x", "--delay", "soon"], "is not a duration"),
        (["order.created", "--to", "x", "--delay", "1", "--at", "2026-01-01T00:00Z"], "cannot both be given"),
        (["order.created", "--to", "x", "--priority", "16"], "--priority"),
        (["order.created", "--to", "x", "--max-attempts", "0"], "--max-attempts"),
        ([], "TOPIC"),
    ],
)
def test_publish_used_wrongly(shop: Shop, arguments: list[str], about: str) -> None:
    assert about in misused(shop.run("publish", *arguments))
    assert shop.statuses() == {}


# ----------------------------------------------------------------------------------------------- enqueue


@pytest.mark.parametrize(
    "arguments", [['{"user_id": 7, "hobby": "chess"}'], ["user_id=7", "hobby=chess"], ['[7, "chess"]']]
)
def test_enqueue_takes_json_or_names_and_values(app: Shop, arguments: list[str]) -> None:
    (row,) = rows(app.run("enqueue", "welcome", *arguments, "--app", "shop:box", "--json"))
    assert list(row) == ["id", "job", "duplicate"]
    (delivery,) = app.world.deliveries()
    assert (str(delivery.message_id), delivery.destination, delivery.queue) == (row["id"], "welcome", "mail")
    (shown,) = rows(app.run("show", row["id"], "--json"))
    assert '"user_id":7' in str(shown["payload"]).replace(" ", "").replace("'", '"')


def test_enqueue_takes_the_options_of_a_call(app: Shop) -> None:
    arguments = ["user_id=7", "--app", "shop:box", "--priority", "3", "--max-attempts", "9", "--idempotency-key", "u7"]
    first = said(app.run("enqueue", "welcome", *arguments, "--delay", "60"))
    (delivery,) = app.world.deliveries()
    assert (delivery.priority, delivery.max_attempts) == (3, 9)
    assert said(app.run("enqueue", "welcome", *arguments)) == [f"{first[0]} (already enqueued)"]


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        (["goodbye", "--app", "shop:box"], "there is no job 'goodbye' (known: welcome)"),
        (["welcome", "--app", "shop:box"], "user_id"),
        (["welcome", "user_id=seven", "--app", "shop:box"], "user_id"),
        (["welcome", "user_id=7", "extra=1", "--app", "shop:box"], "extra"),
        (["welcome", "user_id", "--app", "shop:box"], "is not an argument"),
        (["welcome", "{", "--app", "shop:box"], "this is not valid JSON"),
        (["welcome", "user_id=7"], "name your App with --app"),
    ],
)
def test_enqueue_used_wrongly(app: Shop, arguments: list[str], about: str) -> None:
    assert about in misused(app.run("enqueue", *arguments))
    assert app.statuses() == {}


@pytest.mark.parametrize(
    ("name", "about"),
    [
        ("nowhere:box", "there is no module 'nowhere'"),
        ("shop:crate", "has no 'crate'"),
        ("shop", "does not name an App"),
        ("broken:box", "ZeroDivisionError"),
    ],
)
def test_an_app_that_cannot_be_had_is_one_clear_line(app: Shop, tmp_path: Path, name: str, about: str) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    for command in (["publish", "a", "--app", name], ["enqueue", "a", "--app", name]):
        assert about in refused(app.run(*command))


def test_a_command_that_only_looks_finds_the_apps_database(app: Shop, tmp_path: Path) -> None:
    """With nothing else said, the App that is named says where its messages are."""
    (tmp_path / "elsewhere.py").write_text(f"import todoku\nbox = todoku.App({app.world.url!r})\n")
    app.world.publish(3)
    assert rows(app.run("stats", "--json", TODOKU_DATABASE="", TODOKU_APP="elsewhere:box"))[0]["pending"] == 3
    assert "there is no database" in refused(app.run("stats", TODOKU_DATABASE="", cwd=Path("/")))
