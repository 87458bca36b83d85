"""`todoku workers` and `todoku settings` from the command line."""

from __future__ import annotations

from tests.cli.program import Run, Shop, rows, said
from tests.support.crew import Crew, until


def test_workers_lists_what_each_holds(shop: Shop) -> None:
    assert said(shop.run("workers")) == ["no workers"]
    shop.world.publish(2)
    id = shop.world.worker(name="host:7")
    claims = shop.world.claim(id)
    (row,) = rows(shop.run("workers", "--json"))
    assert (row["id"], row["name"], row["state"], row["alive"], row["held"]) == (str(id), "host:7", "running", True, 2)
    held = rows(shop.run("workers", "--holds", "--json"))
    assert [(one["worker"], one["delivery"], one["attempt"]) for one in held] == [
        ("host:7", claim.id, 1) for claim in claims
    ]


def test_a_worker_is_drained_by_name_and_resumed_by_id(shop: Shop) -> None:
    id = shop.world.worker(name="host:7")
    assert said(shop.run("workers", "drain", "host:7", "--dry-run")) == [f"would drain {id}"]
    assert shop.audit() == []
    assert said(shop.run("workers", "drain", "host:7", "--why", "moved"))[0].startswith(f"asked {id} to drain")
    (row,) = rows(shop.run("workers", "--json"))
    assert row["state"] == "drained"
    (done,) = rows(shop.run("workers", "resume", str(id), "--why", "it is back", "--json"))
    assert done == {"act": "resume", "worker": str(id), "dry_run": False}
    assert shop.audit() == [
        ("ada", "drain", f"worker:{id}", "moved"),
        ("ada", "resume", f"worker:{id}", "it is back"),
    ]
    missing = shop.run("workers", "drain", "nobody", "--why", "x")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "there is no live worker 'nobody'" in missing.stderr


def test_the_stack_of_a_worker_is_printed(shop: Shop) -> None:
    crew = Crew(shop.world)
    crew.handles("warehouse")
    with crew.running() as worker:
        until(lambda: worker.health().state == "running", what="running")
        id = str(worker.health().worker_id)
        assert said(shop.run("workers", "stack", id)) == ["no handler runs"]
        (found,) = rows(shop.run("workers", "stack", id, "--json"))
        assert found == {"handlers": [], "more": 0, "kept": True}
    assert shop.audit()[0][:3] == ("ada", "stack", f"worker:{id}")


def test_settings_say_where_they_come_from(run: Run) -> None:
    done = run("settings", "--json", "--db", "postgresql://shop:secret@h/db", TODOKU_LEASE_SEC="60")
    found = {row["name"]: row for row in rows(done)}
    assert found["lease_sec"] == {
        "name": "lease_sec",
        "value": "60.0",
        "default": "120.0",
        "origin": "TODOKU_LEASE_SEC",
    }
    assert (found["database"]["value"], found["database"]["origin"]) == ("postgresql://shop:***@h/db", "argument")
    assert found["token"]["value"] == "not set"
    assert "shop:secret" not in done.stdout
    changed = rows(run("settings", "--json", "--changed", TODOKU_LEASE_SEC="60"))
    assert "lease_sec" in [row["name"] for row in changed]
    assert "port" not in [row["name"] for row in changed]
