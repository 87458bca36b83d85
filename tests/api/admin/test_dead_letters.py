"""Dead letters: found by reason, re-run with who and why, deleted; each act is in the audit."""

from __future__ import annotations

import msgspec

from tests.support.serving import Server
from tests.support.world import World, aborted
from todoku.core.outcome import Traceback


def test_dead_letters_are_found_by_reason_and_grouped(server: Server, dead: list[int]) -> None:
    """S4-28: every dead letter can be found by reason."""
    assert [row["id"] for row in server.ask("GET", "/dead-letters")["items"]] == sorted(dead, reverse=True)
    found = server.ask("GET", "/dead-letters?reason=BAD_PAYLOAD")["items"]
    assert [row["id"] for row in found] == [dead[2]]
    groups = server.ask("GET", "/dead-letters/reasons")["items"]
    assert [(row["reason"], row["number"]) for row in groups] == [("REFUSED", 2), ("BAD_PAYLOAD", 1)]


def test_a_re_run_is_audited_with_who_and_why(server: Server, dead: list[int], world: World) -> None:
    """S4-29, I9: who is the token's name, never what a caller says."""
    done = server.ask("POST", "/dead-letters/replay", json={"reason": "REFUSED", "why": "the receiver is back"})
    assert done == {"matched": 2, "replayed": 2, "skipped": {}}
    assert sorted(row.id for row in world.deliveries(status="pending"))[:2] == sorted(dead[:2])
    acts = [row["act"] for row in server.ask("GET", "/audit?action=replay")["items"]]
    assert {(act["by"], act["why"], act["target"]) for act in acts} == {
        ("ada", "the receiver is back", f"delivery:{id}") for id in dead[:2]
    }
    again = server.ask("POST", "/dead-letters/replay", json={"reason": "REFUSED", "why": "once more"})
    assert again["replayed"] == 0, "what was done is not done twice"


def test_a_dry_run_changes_nothing(server: Server, dead: list[int], world: World) -> None:
    done = server.ask("POST", "/dead-letters/replay", json={"all": True, "why": "look", "dry_run": True})
    assert done["replayed"] == 3
    assert len(world.deliveries(status="aborted")) == 3
    assert server.ask("GET", "/audit?action=replay")["items"] == []


def test_an_act_on_everything_must_say_so(server: Server, dead: list[int], world: World) -> None:
    for path in ("/dead-letters/replay", "/dead-letters/delete", "/deliveries/cancel"):
        problem = server.ask("POST", path, json={"why": "oops"}, status=422)
        assert "all deliveries" in problem["detail"]
    assert len(world.deliveries(status="aborted")) == 3


def test_dead_letters_are_deleted_for_good(server: Server, dead: list[int], world: World) -> None:
    """S4-30."""
    assert server.ask("DELETE", f"/dead-letters/{dead[0]}", params={"why": "junk"})["changed"] == 1
    server.ask("DELETE", f"/dead-letters/{dead[0]}", params={"why": "junk"}, status=404)
    assert server.ask("POST", "/dead-letters/delete", json={"ids": dead, "why": "junk"})["changed"] == 2
    assert world.deliveries(status="aborted") == []


def test_the_audit_is_read_page_by_page(server: Server) -> None:
    for name in ("a", "b", "c"):
        server.ask("POST", f"/queues/{name}/pause", json={"why": name})
    first = server.ask("GET", "/audit?limit=2&action=pause")
    rest = server.ask("GET", f"/audit?limit=2&action=pause&cursor={first['next']}")
    assert [row["act"]["why"] for row in (*first["items"], *rest["items"])] == ["c", "b", "a"]
    server.ask("GET", "/audit?cursor=x", status=422)


def test_dead_letters_are_grouped_and_found_by_where_the_code_failed(
    server: Server, dead: list[int], world: World
) -> None:
    """The traceback is in the attempts, its fingerprint groups and filters; the acts take it, too."""
    world.publish(to=["till"])
    (claim,) = world.claim(world.worker(), destinations=["till"])
    trace = Traceback("Traceback\n  File 'shop.py', line 3", "Traceback", "f00d")
    world.settle([claim], msgspec.structs.replace(aborted("REFUSED"), traceback=trace))
    groups = server.ask("GET", "/dead-letters/reasons?by_fingerprint=true")["items"]
    assert [(row["reason"], row["fingerprint"], row["number"]) for row in groups] == [
        ("REFUSED", None, 2),
        ("BAD_PAYLOAD", None, 1),
        ("REFUSED", "f00d", 1),
    ]
    (row,) = server.ask("GET", "/dead-letters?fingerprint=f00d")["items"]
    (attempt,) = server.ask("GET", f"/deliveries/{row['id']}/attempts")["items"]
    assert (attempt["traceback"], attempt["fingerprint"]) == (trace.text, "f00d")
    done = server.ask("POST", "/dead-letters/replay", json={"fingerprint": "f00d", "why": "mended"})
    assert done["replayed"] == 1
