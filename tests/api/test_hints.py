"""Hints work: a person who does what a hint says does not get the same error again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import todoku
from tests.cli.conftest import commands, run
from tests.cli.program import Run
from tests.destinations.http.receiving import receiving
from tests.support.world import World, aborted
from todoku.core.address_guard import Guard
from todoku.core.errors import SchemaError
from todoku.engine.diagnostics.explanation import explain

__all__ = ["commands", "run"]


@dataclass
class Ordered:
    order_id: str | None


def test_an_event_without_its_key_is_published_with_the_key_that_is_given(box: todoku.App, world: World) -> None:
    box.event("order.created", key="order_id")(Ordered)
    box.route("order.*", to="elsewhere", ordered=True)
    with pytest.raises(todoku.InvalidMessage, match=r"publish\(event, key=…, tx=…\)"):
        box.publish(Ordered(None), tx=None)
    assert box.publish(Ordered(None), key="7", tx=None).key == "7"
    assert box.publish(Ordered("8"), tx=None).key == "8"


def test_a_job_whose_name_is_taken_gets_another(box: todoku.App) -> None:
    def work() -> None: ...

    box.job(work)
    with pytest.raises(todoku.InvalidSetting, match=r'@box.job\("other"\)'):
        box.job(work)
    with pytest.raises(todoku.InvalidSetting, match=r'its name comes first: @box.job\("its.name"\)'):
        box.job(name="other")(work)  # type: ignore[call-arg, call-overload]
    assert box.job("other")(work).name == "other"


def test_a_key_can_be_reserved_for_longer(box: todoku.App, world: World) -> None:
    """`box.once` has no `hold=`; the ledger has, and the hint names it."""

    def hold_too_short() -> None:
        with box.ledger.once("k", scope="s", tx=None, hold=1) as done:
            world.advance(2)
            with box.ledger.once("k", scope="s", tx=None, hold=600) as other:
                other.store(1)
            done.store(2)

    with pytest.raises(todoku.InProgress, match=r"box\.ledger\.once\(…, hold=600\)"):
        hold_too_short()


def test_a_refused_address_names_the_setting_that_allows_it() -> None:
    """As does the dead letter's error. Where no setting allows it, none is named."""
    nothing = Guard()
    assert nothing.refuses("127.0.0.1", "localhost") == (
        "127.0.0.1 is loopback; for development, TODOKU_HTTP_LOOPBACK=true allows it"
    )
    assert Guard(loopback=True).refuses("127.0.0.1", "localhost") is None
    for address, host, entry in (
        ("10.0.0.7", "hooks.internal", "hooks.internal"),
        ("10.0.0.7", "10.0.0.7", "10.0.0.7"),
        ("fd00::7", "fd00::7", "fd00::7"),
    ):
        assert nothing.refuses(address, host) == f"{address} is private; TODOKU_HTTP_ALLOW={entry} allows it"
        assert Guard((entry,)).refuses(address, host) is None
    assert nothing.refuses("169.254.169.254", "x") == (
        "169.254.169.254 is link-local, which includes cloud metadata services"
    )


def test_a_refused_request_is_sent_after_what_its_error_says(
    world: World, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the error of the dead letter to the request: allow it, restart, replay."""

    def sent(box: todoku.App) -> None:
        box.route("order.*", to=f"{receiver.url}/hook")
        box.publish("order.created", {}, tx=None, idempotency_key="1")
        box.drain()
        box.close()

    with receiving() as receiver:
        sent(todoku.App(url))
        (dead,) = world.deliveries()
        assert dead.reason == "SSRF_REFUSED"
        assert "TODOKU_HTTP_LOOPBACK=true" in str(dead.error)
        situation = world.store.situation(dead.id)
        assert situation is not None
        assert explain(situation)[0].hint == (
            f"allow the address for the workers, as the error says, restart them, then: todoku replay {dead.id}"
        )
        monkeypatch.setenv("TODOKU_HTTP_LOOPBACK", "true")
        box = todoku.App(url)
        box.replay(dead.id, by="ada", why="allowed")
        sent(box)
        assert len(receiver.received) == 1


@pytest.mark.parametrize("reason", ["NO_ROUTE", "IDEMPOTENCY_CONFLICT", "BAD_REQUEST", "SHREDDED"])
def test_no_replay_is_proposed_where_it_would_fail_again(world: World, reason: str) -> None:
    world.publish()
    (claim,) = world.claim(world.worker())
    world.settle([claim], aborted(reason))
    situation = world.store.situation(claim.id)
    assert situation is not None
    (because,) = explain(situation)
    assert "todoku replay" not in because.hint
    assert f"todoku clear {claim.id}" in because.hint


def test_the_migration_that_is_asked_for_is_of_the_database_that_lacks_it(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of the default one: by the URL in the hint, and by the App that pyproject.toml names."""
    (tmp_path / "shop.py").write_text('import todoku\nbox = todoku.App("sqlite:///shop.db")\n')
    named = {"TODOKU_APP": "shop:box"}
    assert "todoku migrate --db sqlite:///shop.db" in run("stats", **named).stderr
    assert run("migrate", **named).returncode == 0
    assert run("stats", **named).returncode == 0
    assert not (tmp_path / "todoku.db").exists()
    monkeypatch.chdir(tmp_path)
    box = todoku.App("sqlite:///other.db")
    box.route("a", to="b")
    with pytest.raises(SchemaError) as refused:
        box.publish("a", 1, tx=None)
    (command,) = [part for part in str(refused.value).split("`") if part.startswith("todoku migrate")]
    assert run(*command.split()[1:]).returncode == 0
    box.publish("a", 1, tx=None)
    box.close()
