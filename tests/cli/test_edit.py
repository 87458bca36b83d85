"""`todoku edit`: a delivery runs with another payload, or its difference is shown."""

from __future__ import annotations

from pathlib import Path

from tests.cli.program import Shop, misused, refused, rows, said

WHY = ("--why", "the sign was wrong")


def test_a_dead_letter_is_edited(shop: Shop, tmp_path: Path) -> None:
    (dead,) = shop.dead()
    lines = said(shop.run("edit", str(dead), "--payload", '{"n": 7}', "--dry-run"))
    assert lines[2:] == ["@@ -1,3 +1,3 @@", " {", '-  "n": 0', '+  "n": 7', " }"]
    assert shop.audit() == []
    file = tmp_path / "payload.json"
    file.write_text('{"n": 8}')
    (row,) = rows(shop.run("edit", str(dead), "--payload", f"@{file}", "--purge", *WHY, "--json"))
    assert (row["delivery"], row["purged"], row["problems"]) == (dead, True, {})
    (made,) = shop.world.deliveries()
    assert (str(made.message_id), made.destination, made.status) == (row["message"], "warehouse", "pending")
    assert {(by, why) for by, _, _, why in shop.audit()} == {("ada", "the sign was wrong")}


def test_what_cannot_be_edited_is_refused(shop: Shop) -> None:
    shop.world.publish()
    (waiting,) = shop.statuses()
    assert "cancel it first" in refused(shop.run("edit", str(waiting), "--payload", "{}", *WHY))
    assert "there is no delivery 999" in refused(shop.run("edit", "999", "--payload", "{}", *WHY))
    assert "Say what to change" in misused(shop.run("edit", str(waiting), *WHY))
    assert "not valid JSON" in misused(shop.run("edit", str(waiting), "--payload", "{", *WHY))
    assert "cannot be read" in misused(shop.run("edit", str(waiting), "--payload", "@nothing.json", *WHY))
