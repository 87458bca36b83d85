"""`todoku.Ref` (S3-102): the secret stays where it is, and only its id is in the message."""

from __future__ import annotations

import asyncio
import copy
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

import todoku
from tests.api.conftest import Attempt
from tests.support.world import World

SECRETS = {"db/password": "hunter2"}


@dataclass
class Login:
    user: str
    password: todoku.Ref


class Packed(msgspec.Struct):
    password: todoku.Ref


class Modelled(BaseModel):
    password: todoku.Ref


@pytest.fixture
def vault(box: todoku.App) -> todoku.App:
    box.secrets("vault", SECRETS.__getitem__)
    return box


def payloads(world: World) -> list[Any]:
    return [msgspec.json.decode(text) if isinstance(text, str) else text
            for (text,) in world.sql("select payload from todoku_message order by seq")]  # fmt: skip


def test_only_the_id_is_stored_and_the_handler_asks_for_the_value(
    vault: todoku.App, world: World, attempt: Attempt
) -> None:
    @vault.job
    def connect(password: todoku.Ref, others: list[todoku.Ref], login: Login) -> list[str]:
        return [password.get(), *(each.get() for each in others), login.password.get()]

    ref = todoku.Ref("vault:db/password")
    connect.enqueue(ref, [ref], Login("ada", ref))
    assert payloads(world) == [{"password": ref.id, "others": [ref.id], "login": {"user": "ada", "password": ref.id}}]
    assert attempt() == [["hunter2"] * 3]


@pytest.mark.parametrize("kind", [Login, Packed, Modelled])
def test_it_may_be_in_an_event_of_any_kind(vault: todoku.App, world: World, attempt: Attempt, kind: Any) -> None:
    vault.event("login.tried")(kind)

    @vault.on(kind)
    def consume(event: kind) -> str:  # type: ignore[valid-type]
        return event.password.get()  # type: ignore[attr-defined,no-any-return]

    given = {"password": todoku.Ref("vault:db/password")} | ({"user": "ada"} if kind is Login else {})
    vault.publish(kind(**given), tx=None)
    assert payloads(world)[0]["password"] == "vault:db/password"
    assert attempt() == ["hunter2"]


def test_async_handlers_await_it_whatever_the_provider_is(box: todoku.App) -> None:
    async def resolve(path: str) -> str:
        await asyncio.sleep(0)
        return SECRETS[path]

    box.secrets("remote", resolve)
    box.secrets("vault", SECRETS.__getitem__)
    seen: list[str] = []

    @box.job
    async def connect(one: todoku.Ref, two: todoku.Ref) -> None:
        seen.extend([await one.aget(), await two.aget()])

    connect.enqueue(todoku.Ref("vault:db/password"), todoku.Ref("remote:db/password"))
    box.drain()
    assert seen == ["hunter2", "hunter2"]


def test_an_unknown_provider_is_refused_at_enqueue_and_nothing_is_stored(box: todoku.App, world: World) -> None:
    @box.job
    def connect(password: todoku.Ref) -> None: ...

    @box.event("login.tried")
    @dataclass
    class Tried:
        password: todoku.Ref

    @box.on(Tried)
    def consume(event: Tried) -> None: ...

    ref = todoku.Ref("nobody:db/password")
    with pytest.raises(todoku.InvalidMessage, match="password: no provider of secrets is called 'nobody'"):
        connect.enqueue(ref)
    with pytest.raises(todoku.InvalidMessage, match="no provider of secrets is called 'nobody'"):
        box.publish(Tried(ref), tx=None)
    assert payloads(world) == []


def test_a_worker_without_the_provider_aborts(box: todoku.App, world: World, attempt: Attempt) -> None:
    @box.job
    def connect(password: todoku.Ref) -> None: ...

    world.publish(topic="connect", to=["connect"], queue="default", payload=lambda _: {"password": "nobody:x"})
    (outcome,) = attempt()
    assert isinstance(outcome, todoku.Abort)
    assert outcome.reason == "BAD_PAYLOAD"
    assert "nobody" in outcome.detail


@pytest.mark.parametrize("id", ["", "password", "vault:", ":path", "9:x", "vault:a\nb", "v" * 65 + ":x"])
def test_what_is_no_id_is_refused(id: str) -> None:
    with pytest.raises(todoku.InvalidMessage, match="provider:path"):
        todoku.Ref(id)


def test_it_shows_its_id_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMTP_PASSWORD", "hunter2")
    ref = todoku.Ref("env:SMTP_PASSWORD")
    assert ref.get() == "hunter2"
    for text in (repr(ref), str(ref), f"{ref}", repr(pickle.loads(pickle.dumps(ref)))):
        assert text == "Ref('env:SMTP_PASSWORD')"
    assert copy.deepcopy(ref) == ref == pickle.loads(pickle.dumps(ref))
    assert len({ref, todoku.Ref("env:SMTP_PASSWORD"), todoku.Ref("env:OTHER")}) == 2


def test_the_environment_gives_what_is_set_and_nothing_of_todokus_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message must not be a way to the master keys."""
    monkeypatch.setenv("TODOKU_MASTER_KEYS", "k:secret")
    with pytest.raises(todoku.DeliveryError, match="SECRET_REFUSED"):
        todoku.Ref("env:TODOKU_MASTER_KEYS").get()
    with pytest.raises(todoku.DeliveryError, match="SECRET_NOT_FOUND") as missing:
        todoku.Ref("env:NOT_THERE").get()
    assert missing.value.retryable


def test_files_are_found_below_their_directory_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secrets" / "db").mkdir(parents=True)
    (tmp_path / "secrets" / "db" / "password").write_text("hunter2\n")
    (tmp_path / "outside").write_text("nobody's")
    (tmp_path / "secrets" / "link").symlink_to(tmp_path / "outside")
    monkeypatch.setenv("TODOKU_SECRETS_DIR", str(tmp_path / "secrets"))
    box = todoku.App(f"sqlite:///{tmp_path}/x.db")
    with box.outbox.secrets.near():
        assert todoku.Ref("file:db/password").get() == "hunter2"
        for path in ("../outside", "/etc/passwd", "link", "db/../../outside", "."):
            with pytest.raises(todoku.DeliveryError, match="SECRET_REFUSED"):
                todoku.Ref(f"file:{path}").get()
        with pytest.raises(todoku.DeliveryError, match="SECRET_NOT_FOUND"):
            todoku.Ref("file:missing").get()
    with pytest.raises(todoku.DeliveryError, match="secrets_dir"):
        todoku.Ref("file:db/password").get()
    box.close()


def test_providers_are_checked_where_they_are_registered(box: todoku.App) -> None:
    with pytest.raises(todoku.InvalidSetting, match="two providers"):
        box.secrets("env", str.upper)
    with pytest.raises(todoku.InvalidSetting, match="cannot be called"):
        box.secrets("a b", str.upper)
    with pytest.raises(todoku.InvalidSetting, match="is not callable"):
        box.secrets("vault", "https://vault")  # type: ignore[arg-type]
    box.secrets("odd", lambda _path: 7)  # type: ignore[arg-type,return-value]
    with box.outbox.secrets.near(), pytest.raises(todoku.InvalidSetting, match="must return a str"):
        todoku.Ref("odd:x").get()


def test_an_async_provider_is_awaited(box: todoku.App) -> None:
    async def resolve(path: str) -> str:
        return path

    box.secrets("remote", resolve)
    with box.outbox.secrets.near(), pytest.raises(todoku.TodokuError, match=r"await ref.aget\(\)"):
        todoku.Ref("remote:x").get()


def test_other_packages_bring_providers_by_an_entry_point(
    box: todoku.App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keepers.py").write_text("def resolve(path):\n    return f'kept {path}'\n")
    info = tmp_path / "keepers-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: keepers\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[todoku.secrets]\nkeeper = keepers:resolve\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    seen: list[str] = []

    @box.job
    def connect(password: todoku.Ref) -> None:
        seen.append(password.get())

    connect.enqueue(todoku.Ref("keeper:x"))
    box.drain()
    assert seen == ["kept x"]
