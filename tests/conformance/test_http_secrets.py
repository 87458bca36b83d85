"""Signing keys and tokens: made once, shown once, hashed or sealed at rest (S4-21, seed 004's signatures)."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.world import SOMEBODY, World
from todoku.core.errors import CannotOpen, InvalidAct
from todoku.core.settings import Settings
from todoku.engine.http import api_tokens, signing_keys

MASTERS = f"new:{base64.b64encode(b'n' * 32).decode()},old:{base64.b64encode(b'o' * 32).decode()}"


def settings(world: World, **more: object) -> Settings:
    return world.settings(**more)


def stored(world: World, column: str, table: str) -> list[object]:
    return [value for (value,) in world.sql(f"select {column} from {table}")]


# ------------------------------------------------------------------------------------------- signing keys


def test_signing_keys_are_made_once_however_many_ask_and_one_of_them_is_told_so(world: World) -> None:
    stores = [world.another_store(lock_timeout_sec=60) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda store: signing_keys.signing_keys(store, settings(world)), stores))
    assert len({(each.current, each.next) for each in found}) == 1
    assert [each.made for each in found].count(True) == 1
    assert found[0].current != found[0].next


def test_after_a_rotation_next_signs_and_the_old_key_is_kept_for_a_while(world: World) -> None:
    before = signing_keys.signing_keys(world.store, settings(world))
    after = signing_keys.rotate(world.store, settings(world), SOMEBODY)
    assert after.current == before.next
    assert after.next not in (before.current, before.next)
    assert after.old == (before.current,)
    assert signing_keys.signing_keys(world.store, settings(world)) == after
    world.advance(signing_keys.OVERLAP + 1)
    assert signing_keys.signing_keys(world.store, settings(world)).old == ()
    assert world.store.retention.prune(history_ttl=1.0).secrets == 1
    assert len(stored(world, "id", "todoku_secret")) == 2


def test_a_rotation_is_audited_without_a_key(world: World) -> None:
    made = signing_keys.rotate(world.store, settings(world), SOMEBODY)
    told = str(world.sql("select by, action, target, why from todoku_audit"))
    assert "rotate" in told
    assert not any(key in told for key in (made.current, made.next, *made.old))


def test_keys_of_the_settings_go_before_stored_ones_and_cannot_be_rotated_here(world: World) -> None:
    given = settings(world, signing_keys="sig_aaaaaaaaaaaaaaaa,sig_bbbbbbbbbbbbbbbb")
    assert signing_keys.signing_keys(world.store, given).next == "sig_bbbbbbbbbbbbbbbb"
    with pytest.raises(InvalidAct, match="TODOKU_SIGNING_KEYS"):
        signing_keys.rotate(world.store, given, SOMEBODY)
    assert stored(world, "id", "todoku_secret") == []


def test_with_master_keys_the_signing_keys_are_sealed_at_rest(world: World) -> None:
    sealed = settings(world, master_keys=MASTERS)
    made = signing_keys.signing_keys(world.store, sealed)
    raw = b"".join(bytes(value) for value in stored(world, "value", "todoku_secret"))  # type: ignore[call-overload]
    assert made.current.encode() not in raw
    assert set(stored(world, "master_key_id", "todoku_secret")) == {"new"}
    with pytest.raises(CannotOpen, match="new"):
        signing_keys.signing_keys(world.store, settings(world))


def test_a_secret_under_another_name_does_not_open(world: World) -> None:
    """Whoever can write to the table must not be able to pass one secret for another."""
    sealed = settings(world, master_keys=MASTERS)
    signing_keys.signing_keys(world.store, sealed)
    world.sql("update todoku_secret set id = ? where name = 'signing:next'", "01900000-0000-7000-8000-000000000000")
    with pytest.raises(CannotOpen, match="was changed"):
        signing_keys.signing_keys(world.store, sealed)


# ------------------------------------------------------------------------------------------------- tokens


def test_a_token_is_stored_as_its_hash_and_known_by_its_text(world: World) -> None:
    made, text = api_tokens.create(world.store, SOMEBODY, name="shop", scopes=["publish"])
    assert text.startswith(f"{made.prefix}_")
    assert text not in str(world.sql("select * from todoku_api_key")) + str(world.sql("select * from todoku_audit"))
    found = api_tokens.TokenChecker(world.store, settings(world)).check(text)
    assert found is not None
    assert (found.name, found.allows("publish"), found.allows("read"), found.allows("admin")) == (
        "shop", True, False, False,
    )  # fmt: skip


@pytest.mark.parametrize("changed", [0, 7, 20, -1])
def test_a_token_with_a_changed_character_is_nobodys(world: World, changed: int) -> None:
    _, text = api_tokens.create(world.store, SOMEBODY, name="shop", scopes=["admin"])
    letters = list(text)
    letters[changed] = "x" if letters[changed] != "x" else "y"
    checking = api_tokens.TokenChecker(world.store, settings(world))
    assert checking.check("".join(letters)) is None
    assert checking.check("") is None
    assert checking.check("x" * 10_000) is None


def test_a_revoked_token_opens_nothing_after_a_few_seconds(world: World) -> None:
    now = [0.0]
    checking = api_tokens.TokenChecker(world.store, settings(world), monotonic=lambda: now[0])
    made, text = api_tokens.create(world.store, SOMEBODY, name="shop", scopes=["read"])
    assert checking.check(text) is not None
    assert made.id is not None
    api_tokens.revoke(world.store, made.id, SOMEBODY)
    now[0] += api_tokens.CACHE_SECONDS
    assert checking.check(text) is None
    with pytest.raises(InvalidAct, match="to revoke"):
        api_tokens.revoke(world.store, made.id, SOMEBODY)


def test_a_token_ends_by_itself(world: World) -> None:
    _, text = api_tokens.create(world.store, SOMEBODY, name="guest", scopes=["read"], lasts=60)
    assert api_tokens.TokenChecker(world.store, settings(world)).check(text) is not None
    world.advance(61)
    assert api_tokens.TokenChecker(world.store, settings(world)).check(text) is None


def test_the_token_of_the_settings_is_an_admins_and_has_no_row(world: World) -> None:
    checking = api_tokens.TokenChecker(world.store, settings(world, token="0123456789abcdef"))
    found = checking.check("0123456789abcdef")
    assert found is not None
    assert found.allows("admin")
    assert checking.check("0123456789abcdeg") is None
    assert api_tokens.list_tokens(world.store) == ()


def test_the_first_token_is_made_once_and_only_where_there_is_none(world: World) -> None:
    stores = [world.another_store(lock_timeout_sec=60) for _ in range(4)]
    assert api_tokens.create_first(world.store, settings(world, token="0123456789abcdef")) is None
    with ThreadPoolExecutor(4) as pool:
        shown = [
            text for text in pool.map(lambda store: api_tokens.create_first(store, settings(world)), stores) if text
        ]
    assert len(shown) == 1
    found = api_tokens.TokenChecker(world.store, settings(world)).check(shown[0])
    assert found is not None
    assert found.allows("admin")


def test_when_a_token_was_used_is_written_at_most_once_a_minute(world: World) -> None:
    now = [0.0]
    checking = api_tokens.TokenChecker(world.store, settings(world), monotonic=lambda: now[0])
    _, text = api_tokens.create(world.store, SOMEBODY, name="shop", scopes=["read"])
    seen = []
    for passed in (0.0, 30.0, 31.0):
        now[0] += passed
        world.advance(passed)
        checking.check(text)
        seen.append(api_tokens.list_tokens(world.store)[0].last_used_at)
    assert seen[0] is not None
    assert seen[1] == seen[0]
    assert seen[2] is not None
    assert seen[2] > seen[0]


@pytest.mark.parametrize("scopes", [[], ["root"], ["publish", "everything"]])
def test_a_token_without_a_proper_scope_is_refused_and_nothing_is_stored(world: World, scopes: list[str]) -> None:
    with pytest.raises(InvalidAct, match="scope"):
        api_tokens.create(world.store, SOMEBODY, name="shop", scopes=scopes)
    assert api_tokens.list_tokens(world.store) == ()


def test_a_token_is_found_by_its_prefix_or_its_name(world: World) -> None:
    made, _ = api_tokens.create(world.store, SOMEBODY, name="shop", scopes=["read"])
    api_tokens.create(world.store, SOMEBODY, name="twice", scopes=["read"])
    api_tokens.create(world.store, SOMEBODY, name="twice", scopes=["read"])
    assert api_tokens.find(world.store, made.prefix).id == api_tokens.find(world.store, "shop").id == made.id
    with pytest.raises(InvalidAct, match="2 tokens"):
        api_tokens.find(world.store, "twice")
    with pytest.raises(InvalidAct, match="no token"):
        api_tokens.find(world.store, "nobody")
