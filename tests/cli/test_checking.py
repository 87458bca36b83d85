"""Checking from the command line: verify names what is broken, doctor says what to do."""

from __future__ import annotations

import time
from pathlib import Path

from tests.cli.program import Run, Shop, rows, said
from tests.support.world import World


def test_verify_says_that_everything_holds(shop: Shop) -> None:
    shop.dead(2)
    shop.world.publish(3, ordered=True, key="k")
    lines = said(shop.run("verify"))
    assert len(lines) == 28
    assert all(line.startswith("holds ") for line in lines)
    row = rows(shop.run("verify", "--json"))[0]
    assert row == {
        "invariant": "I1", "name": "acknowledged", "holds": True,
        "sentence": "every message has a delivery, unless a person purged it", "examples": [],
    }  # fmt: skip


def test_verify_names_the_broken_one_and_exits_1(shop: Shop) -> None:
    """I1: somebody deleted rows by hand."""
    (message,) = shop.world.publish()
    shop.world.sql("delete from todoku_delivery")
    done = shop.run("verify")
    assert (done.returncode, done.stderr) == (1, "")
    (line,) = [line for line in done.stdout.splitlines() if not line.startswith("holds ")]
    assert line.startswith("broken  I1   acknowledged: ")
    assert line.endswith(f"violated by message {message.id}")


def levels(shop: Shop, *arguments: str, **environ: str) -> dict[str, str]:
    """What doctor found, by what it looked at."""
    done = shop.run("doctor", "--json", *arguments, **environ)
    assert done.stderr == ""
    found = rows_of(done.stdout)
    assert done.returncode == int("problem" in found.values())
    return found


def rows_of(text: str) -> dict[str, str]:
    import json

    return {row["what"]: row["level"] for row in map(json.loads, text.splitlines())}


def test_doctor_finds_a_set_up_that_works(shop: Shop) -> None:
    shop.world.worker()
    shop.world.store.destinations.announce(["warehouse"])
    shop.world.publish()
    found = levels(shop)
    for what in ("app", "database", "schema", "clock", "workers", "history"):
        assert found[what] == "ok", what
    assert "destinations" not in found
    assert found["disk" if shop.world.backend == "sqlite" else "connections"] == "ok"


def test_doctor_says_what_to_do(shop: Shop) -> None:
    shop.dead(1)
    shop.world.publish()
    shop.world.claim(shop.world.worker(lease=0.001))
    shop.world.sql("update todoku_delivery set worker_id = ?, status = 'sending' where status = 'pending'",
                   str(shop.world.worker(lease=0.001)))  # fmt: skip
    shop.world.publish(to=["nobody"])
    text = shop.run("doctor", TODOKU_RECLAIM_INTERVAL_SEC="0.001").stdout
    assert "problem  leases" in text
    assert "→ start a worker, or run `todoku release-expired`" in text
    assert "deliveries wait for nobody, which no worker has registered" in text
    assert "warn     dead letters  1 dead letters" in text


def test_doctor_looks_at_a_database_that_is_not_ready(run: Run, sqlite_url: str) -> None:
    missing = run("doctor", "--db", sqlite_url)
    assert (missing.returncode, "there is no database" in missing.stdout) == (1, True)
    Path(sqlite_url.removeprefix("sqlite:///")).touch()
    empty = run("doctor", "--db", sqlite_url)
    assert "problem  schema        not migrated" in empty.stdout
    assert "→ run todoku migrate --db " in empty.stdout
    nobody = run("doctor", "--db", "postgresql://127.0.0.1:1/x")
    assert (nobody.returncode, "PostgreSQL does not answer" in nobody.stdout) == (1, True)


def test_doctor_imports_the_app(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import todoku\nbox = todoku.App()\nbox.route('a', to='b')\n")
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    assert levels(shop, "--app", "shop:box")["app"] == "ok"
    assert levels(shop, "--app", "broken:box")["app"] == "problem"
    assert levels(shop, TODOKU_APP="shop")["app"] == "problem"


def test_doctor_sees_that_the_clocks_differ(world: World, url: str) -> None:
    """The database's clock an hour ahead: on SQLite they are the same one."""
    from todoku.core.settings import Settings
    from todoku.engine.diagnostics.doctor import examine

    world.advance(3600)
    found = {finding.what: finding for finding in examine(world.store, Settings())}
    assert found["clock"].level == "warn"
    assert "differ by 3" in found["clock"].text
    assert time.time() < world.store.ping()
