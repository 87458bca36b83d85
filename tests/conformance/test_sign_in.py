"""Users and sessions of the dashboard: hashed at rest, ended by time and by every change of their owner, audited."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.world import SOMEBODY, World
from todoku.core.errors import InvalidAct, NotThere
from todoku.engine.http import api_tokens
from todoku.engine.sign_in import passwords, users
from todoku.engine.sign_in.form_key import FormKey
from todoku.engine.sign_in.sessions import Sessions, hash_id, person_of_token
from todoku.store.sessions import Person
from todoku.store.users import UserChange

PASSWORD = "correct horse battery staple"
ADA = Person(kind="user", subject="ada", name="ada", role="operator")


def audited(world: World) -> list[tuple[str, str, str]]:
    return [tuple(row) for row in world.sql("select by, action, target from todoku_audit order by id")]  # type: ignore[misc]


@pytest.fixture(autouse=True)
def _quick_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash that takes a millisecond: what is tested here is not argon2."""
    from argon2 import PasswordHasher

    quick = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(passwords, "_hasher", lambda: quick)
    passwords._dummy.cache_clear()


def ada(world: World) -> None:
    users.create_user(world.store, SOMEBODY, name="ada", password=PASSWORD, role_name="operator")


# -------------------------------------------------------------------------------------------------- users


def test_a_user_is_stored_with_the_hash_of_the_password_and_audited(world: World) -> None:
    ada(world)
    assert PASSWORD not in str(world.sql("select * from todoku_user")) + str(world.sql("select * from todoku_audit"))
    assert users.verify_user(world.store, "ada", PASSWORD) == ADA
    assert users.verify_user(world.store, "ada", PASSWORD + "!") is None
    assert users.verify_user(world.store, "nobody", PASSWORD) is None
    assert users.verify_user(world.store, "\0", PASSWORD) is None
    assert users.verify_user(world.store, "ada", "x" * 5000) is None
    assert audited(world) == [(SOMEBODY.by, "create as operator", "user:ada")]


def test_of_two_who_take_the_same_name_one_gets_it(world: World) -> None:
    stores = [world.another_store(lock_timeout_sec=60) for _ in range(4)]

    def take(number: int) -> bool:
        try:
            stores[number].users.add("ada", f"hash {number}", "viewer", SOMEBODY)
        except InvalidAct:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(take, range(4))) == [False, False, False, True]
    assert len(audited(world)) == 1


@pytest.mark.parametrize(
    ("name", "password", "role"),
    [
        ("", PASSWORD, "viewer"), ("a\nb", PASSWORD, "viewer"), ("a\0b", PASSWORD, "viewer"),
        ("x" * 256, PASSWORD, "viewer"), ("ada", "short", "viewer"), ("ada", "x" * 1025, "viewer"),
        ("ada", "aaaaaaaaaaaaaaaa", "viewer"), ("a long user name", "A LONG USER NAME", "viewer"),
        ("ada", PASSWORD, "owner"), ("ada", PASSWORD, None),
    ],
)  # fmt: skip
def test_a_bad_name_password_or_role_is_refused(world: World, name: str, password: str, role: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        users.create_user(world.store, SOMEBODY, name=name, password=password, role_name=role)
    assert world.store.users.rows() == ()


def test_a_name_is_the_same_however_it_is_written(world: World) -> None:
    users.create_user(world.store, SOMEBODY, name=" Ame\u0301lie ", password=PASSWORD, role_name="viewer")
    assert [user.name for user in users.list_users(world.store)] == ["Am\u00e9lie"]
    assert users.verify_user(world.store, "Am\u00e9lie", PASSWORD) is not None


def test_users_are_listed_by_name_in_pages(world: World) -> None:
    for name in ("c", "a", "b"):
        world.store.users.add(name, "hash", "viewer", SOMEBODY)
    assert [row.name for row in world.store.users.rows(limit=2)] == ["a", "b"]
    assert [row.name for row in world.store.users.rows(after="b")] == ["c"]


def test_a_change_of_nobody_is_refused(world: World) -> None:
    with pytest.raises(NotThere):
        world.store.users.change("ada", UserChange(action="disable", disabled=True), SOMEBODY)
    assert audited(world) == []


# ----------------------------------------------------------------------------------------------- sessions


def open_session(world: World, person: Person = ADA, **settings: object) -> tuple[Sessions, str]:
    sessions = Sessions(world.store, world.settings(**settings))
    return sessions, sessions.open(person).id


def test_a_session_is_stored_as_its_hash_and_found_by_its_id(world: World) -> None:
    ada(world)
    sessions, id = open_session(world)
    found = sessions.find(id)
    assert found is not None
    assert found.person == ADA
    assert id not in str(world.sql("select * from todoku_session"))
    assert sessions.find(id + "x") is None
    assert sessions.find("") is None
    assert sessions.find("x" * 5000) is None
    assert ("ada", "sign in", "user:ada") in audited(world)


def test_a_new_session_has_a_new_id_and_ends_the_old_one_of_the_browser(world: World) -> None:
    """Session fixation."""
    ada(world)
    sessions, first = open_session(world)
    second = sessions.open(ADA, replaces=first)
    assert second.id != first
    assert sessions.find(first) is None
    assert sessions.find(second.id) is not None


def test_a_session_ends_by_itself_when_it_is_idle_and_at_last(world: World) -> None:
    ada(world)
    sessions, id = open_session(world, web_idle_sec=600, web_session_sec=1500)
    for _ in range(3):  # used again and again, each time by a process that has not seen it
        world.advance(450)
        assert Sessions(world.store, world.settings(web_idle_sec=600)).find(id) is not None
    world.advance(200)
    assert sessions.find(id) is None, "the longest time has passed"
    idle = sessions.open(ADA).id
    world.advance(601)
    assert sessions.find(idle) is None, "it was not used"


def test_a_use_is_recorded_at_most_once_in_a_while(world: World) -> None:
    ada(world)
    now = [0.0]
    sessions = Sessions(world.store, world.settings(), monotonic=lambda: now[0])
    id = sessions.open(ADA).id
    before = world.sql("select seen_at from todoku_session")
    world.advance(30)
    assert sessions.find(id) is not None
    assert world.sql("select seen_at from todoku_session") == before
    now[0] += 61
    world.advance(31)
    assert sessions.find(id) is not None
    assert world.sql("select seen_at from todoku_session") != before


@pytest.mark.parametrize("change", ["password", "role", "disable"])
def test_a_change_of_the_user_ends_the_sessions_in_the_same_commit(world: World, change: str) -> None:
    ada(world)
    sessions, id = open_session(world)
    if change == "password":
        users.set_password(world.store, SOMEBODY, name="ada", password="another long password")
        assert users.verify_user(world.store, "ada", PASSWORD) is None
    elif change == "role":
        assert users.set_role(world.store, SOMEBODY, name="ada", role_name="viewer").role == "viewer"
    else:
        users.set_disabled(world.store, SOMEBODY, name="ada", disabled=True)
        assert users.verify_user(world.store, "ada", PASSWORD) is None
    assert sessions.find(id) is None


def test_a_session_of_a_disabled_user_is_not_found_even_if_it_was_opened_meanwhile(world: World) -> None:
    ada(world)
    users.set_disabled(world.store, SOMEBODY, name="ada", disabled=True)
    sessions, id = open_session(world)
    assert sessions.find(id) is None
    users.set_disabled(world.store, SOMEBODY, name="ada", disabled=False)
    assert sessions.find(id) is None, "it has ended for good"
    users.set_role(world.store, SOMEBODY, name="ada", role_name="admin")
    late = sessions.open(ADA).id  # checked before the change, stored after it
    found = sessions.find(late)
    assert found is not None
    assert found.person.role == "admin", "the present role counts"


def test_a_session_of_a_token_ends_with_the_token(world: World) -> None:
    token, text = api_tokens.create(world.store, SOMEBODY, name="laptop", scopes=["operate"], lasts=3600)
    person = person_of_token(token, text)
    assert person is not None
    assert (person.kind, person.role, person.name) == ("token", "operator", "laptop")
    sessions, id = open_session(world, person)
    assert sessions.find(id) is not None
    assert token.id is not None
    api_tokens.revoke(world.store, token.id, SOMEBODY)
    assert sessions.find(id) is None


def test_a_session_of_a_token_ends_when_the_token_expires(world: World) -> None:
    token, text = api_tokens.create(world.store, SOMEBODY, name="guest", scopes=["read"], lasts=3600)
    person = person_of_token(token, text)
    assert person is not None
    sessions, id = open_session(world, person)
    world.advance(3601)
    assert sessions.find(id) is None


def test_a_token_that_may_only_publish_is_nobody_here(world: World) -> None:
    token, text = api_tokens.create(world.store, SOMEBODY, name="shop", scopes=["publish"])
    assert person_of_token(token, text) is None


def test_a_session_of_the_settings_token_ends_when_that_is_another(world: World) -> None:
    text = "0123456789abcdef"
    person = person_of_token(api_tokens.OF_SETTINGS, text)
    assert person is not None
    assert person.role == "admin"
    sessions, id = open_session(world, person, token=text)
    assert text not in str(world.sql("select * from todoku_session"))
    assert sessions.find(id) is not None
    assert Sessions(world.store, world.settings(token="another token 16".replace(" ", "-"))).find(id) is None
    assert Sessions(world.store, world.settings()).find(id) is None


def test_signing_out_ends_one_session_and_everywhere_all_of_the_person(world: World) -> None:
    ada(world)
    users.create_user(world.store, SOMEBODY, name="bob", password=PASSWORD, role_name="viewer")
    sessions, first = open_session(world)
    second, third = sessions.open(ADA).id, sessions.open(ADA).id
    other = sessions.open(Person(kind="user", subject="bob", name="bob", role="viewer")).id
    same_name = sessions.open(Person(kind="oidc", subject="ada", name="ada", role="viewer")).id
    sessions.end(first)
    sessions.end(first)
    assert sessions.find(first) is None
    assert sessions.find(second) is not None
    assert sessions.end_all(ADA) == 2
    assert sessions.find(second) is sessions.find(third) is None
    assert sessions.find(other) is not None
    assert sessions.find(same_name) is not None


def test_expired_sessions_are_pruned_and_others_are_not(world: World) -> None:
    ada(world)
    sessions, _ = open_session(world, web_session_sec=60)
    lasting = Sessions(world.store, world.settings(web_session_sec=86_400)).open(ADA).id
    world.advance(61)
    assert world.store.retention.prune(history_ttl=1.0).sessions == 1
    assert [row[0] for row in world.sql("select hash from todoku_session")] == [hash_id(lasting)]
    assert sessions.find(lasting) is not None


# ------------------------------------------------------------------------------------------- signed forms


def test_every_process_signs_forms_with_the_same_key(world: World) -> None:
    stores = [world.another_store(lock_timeout_sec=60) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda store: FormKey(store, world.settings()).sign("guest", "ada"), stores))
    assert len(set(found)) == 1
    key = FormKey(world.store, world.settings())
    assert key.is_signed(found[0], "guest", "ada")
    assert not key.is_signed(found[0], "guest", "bob")
    assert not key.is_signed(found[0], "sign-in", "ada")
    assert not key.is_signed("", "guest", "ada")
