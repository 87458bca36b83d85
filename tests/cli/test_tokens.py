"""Tokens and signing keys from the command line: printed once, audited, never shown again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import Run, Shop, misused, refused, rows, said
from tests.support.world import World
from todoku.core.sealed import format_master_key
from todoku.engine.http import api_tokens
from todoku.engine.http.signing_keys import signing_keys


@pytest.fixture
def shop(run: Run, sqlite_url: str) -> Iterator[Shop]:
    """A migrated SQLite database, and the program on it."""
    world = World("sqlite", sqlite_url)
    world.store.migrate()
    yield Shop(world, lambda *given, **more: run(*given, **{"TODOKU_DATABASE": sqlite_url, "TODOKU_BY": "ada", **more}))
    world.close()


def test_a_token_is_made_used_listed_and_revoked(shop: Shop) -> None:
    done = shop.run("tokens", "create", "--scope", "publish", "--name", "shop", "--expires", "30d", "--why", "a shop")
    text = done.stdout.strip()
    found = api_tokens.TokenChecker(shop.world.store, shop.world.settings()).check(text)
    assert found is not None
    assert (found.name, found.scopes) == ("shop", ("publish",))
    (row,) = rows(shop.run("tokens", "list", "--json"))
    assert (row["name"], row["scopes"], row["alive"]) == ("shop", "publish", True)
    assert row["expires_at"] is not None
    shown = shop.run("tokens", "list").stdout
    assert row["prefix"] in shown
    assert text not in shown
    assert said(shop.run("tokens", "revoke", "shop", "--dry-run")) == [f"would revoke {row['prefix']} (shop)"]
    assert said(shop.run("tokens", "revoke", row["prefix"], "--why", "leaked")) == [f"revoked {row['prefix']} (shop)"]
    assert api_tokens.TokenChecker(shop.world.store, shop.world.settings()).check(text) is None
    assert [(by, action, why) for by, action, _, why in shop.audit()] == [
        ("ada", "create", "a shop"), ("ada", "revoke", "leaked"),
    ]  # fmt: skip


def test_for_programs_the_token_is_in_the_json(shop: Shop) -> None:
    (made,) = rows(shop.run("tokens", "create", "--scope", "read", "--scope", "publish", "--json"))
    assert made["scopes"] == "publish read"
    assert made["token"].startswith(made["prefix"])


def test_what_cannot_be_done_is_said(shop: Shop) -> None:
    assert "scope" in misused(shop.run("tokens", "create"))
    assert "no token called 'nobody'" in refused(shop.run("tokens", "revoke", "nobody"))
    given = {"TODOKU_SIGNING_KEYS": "sig_aaaaaaaaaaaaaaaa,sig_bbbbbbbbbbbbbbbb"}
    assert "are a setting" in refused(shop.run("signing-keys", "rotate", **given))
    wrong = refused(shop.run("signing-keys", TODOKU_SIGNING_KEYS="only-one-of-them"))
    assert "signing_keys cannot be read" in wrong
    assert "only-one" not in wrong


def test_signing_keys_are_shown_for_a_receiver_and_rotated(shop: Shop) -> None:
    told = said(shop.run("signing-keys"))
    assert told == said(shop.run("signing-keys", "show"))
    before = dict(line.split("=", 1) for line in told)
    (after,) = rows(shop.run("signing-keys", "rotate", "--why", "twice a year", "--json"))
    assert after["current"] == before["QSTASH_NEXT_SIGNING_KEY"]
    assert after["next"] not in before.values()
    assert [(by, action) for by, action, *_ in shop.audit()] == [
        ("todoku", "create"), ("todoku", "create"), ("ada", "rotate"), ("ada", "rotate"), ("ada", "rotate"),
    ]  # fmt: skip


def test_keys_and_tokens_may_be_in_files(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("sig_aaaaaaaaaaaaaaaa,sig_bbbbbbbbbbbbbbbb\n")
    told = said(shop.run("signing-keys", TODOKU_SIGNING_KEYS_FILE=str(file)))
    assert told[0] == "QSTASH_CURRENT_SIGNING_KEY=sig_aaaaaaaaaaaaaaaa"
    missing = shop.run("tokens", "list", TODOKU_TOKEN_FILE=str(tmp_path / "x"))
    assert "TODOKU_TOKEN_FILE cannot be read" in refused(missing)


def test_a_rotation_of_master_keys_seals_the_signing_keys_anew(shop: Shop) -> None:
    spring, autumn = (format_master_key(name, os.urandom(32)) for name in ("spring", "autumn"))
    shown = said(shop.run("signing-keys", TODOKU_MASTER_KEYS=spring))
    both = {"TODOKU_MASTER_KEYS": f"{autumn},{spring}"}
    told = said(shop.run("encryption-keys", "rotate", "--why", "autumn", **both))
    assert told == ["rotate to autumn: wrapped 0 data keys", "  encrypted 2 stored secrets with it"]
    assert said(shop.run("signing-keys", TODOKU_MASTER_KEYS=autumn)) == shown
    assert signing_keys(shop.world.store, shop.world.settings(master_keys=autumn)).next in shown[1]
