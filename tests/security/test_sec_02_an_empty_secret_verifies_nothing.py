"""SEC-2: an empty secret verifies nothing and signs nothing. With one, anybody could make a right signature."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

import todoku
from tests.daemon.running import Shop
from tests.ingest.conftest import WAYS_IN, Poster, posting
from tests.ingest.signers import KINDS, SECRET, Kind, event
from tests.support.serving import Watching, serving
from tests.support.world import World
from todoku.api.server import server_app
from todoku.core.ingest import Identity, ReceivedRequest
from todoku.core.signature import signing_keys, upstash_signature, verify_upstash, webhook_headers
from todoku.engine.ingest.source import NoSecret, SourceKeys

BLANKS = ["", " ", "\n", "\t \r\n", "\0\0", "\ufeff", "\u200b", '""', "''", "whsec_", ' "whsec_" ']
"""What a forgotten secret looks like: unset in a compose file, in quotes, saved by an editor, cut off."""

STANDARD = next(kind for kind in KINDS if kind.name == "standard")
PLAIN = [kind for kind in KINDS if kind is not STANDARD]
OF_ZEROS = "whsec_" + base64.b64encode(bytes(24)).decode()
"""HMAC fills a key up with zeros: this is the empty key."""


@pytest.fixture
def box(world: World) -> Iterator[todoku.App]:
    box = todoku.App(world.url)
    box.route("**", to="warehouse")
    yield box
    box.close()


@pytest.fixture(params=WAYS_IN)
def poster(box: todoku.App, request: pytest.FixtureRequest) -> Iterator[Poster]:
    with posting(box, request.param) as poster:
        yield poster


def stored(world: World) -> int:
    return int(world.sql("select count(*) from todoku_message")[0][0])


def forged(kind: Kind, secret: str) -> dict[str, str]:
    """The headers of an attacker who guesses that the secret is this one."""
    return kind.sign(event(), secret, at=time.time(), id="evt_1")


# ------------------------------------------------------------------------------------------------ at the request


@pytest.mark.parametrize("kind", PLAIN, ids=[kind.name for kind in PLAIN])
def test_a_request_signed_with_nothing_is_not_stored(box: todoku.App, world: World, poster: Poster, kind: Kind) -> None:
    """Whatever the provider's nothing looks like, and with or without a good secret beside it."""
    vault: dict[str, str] = {}
    box.secrets("vault", vault.__getitem__)
    for place, blank in enumerate(BLANKS):
        vault |= {f"{place}": blank, f"good{place}": SECRET}
        alone = kind.make(secrets=[todoku.Ref(f"vault:{place}")])
        beside = kind.make(secrets=[todoku.Ref(f"vault:good{place}"), todoku.Ref(f"vault:{place}")])
        for name, verifier in ((f"alone{place}", alone), (f"beside{place}", beside)):
            box.ingest(name, verifier, topic="x")
            for guess in (blank, blank.strip(), "", "\0"):
                answer = poster.post(name, event(), forged(kind, guess))
                assert answer.status_code == 503, (blank, guess)
    assert stored(world) == 0


def test_a_key_of_zeros_is_the_empty_key(box: todoku.App, world: World, poster: Poster) -> None:
    vault = {"zeros": OF_ZEROS, "cut": "whsec_"}
    box.secrets("vault", vault.__getitem__)
    for name in vault:
        box.ingest(name, todoku.standard_webhooks(secrets=[todoku.Ref(f"vault:{name}")]), topic="x")
        assert poster.post(name, event(), forged(STANDARD, OF_ZEROS)).status_code == 503
    with pytest.raises(todoku.InvalidSetting):
        todoku.standard_webhooks(secrets=[OF_ZEROS])
    assert stored(world) == 0


class Careless(msgspec.Struct, frozen=True):
    """A verifier of the user's own, that makes the empty key of anything."""

    secrets: tuple[str | todoku.Ref, ...]
    kept: tuple[str, ...] = ()

    def key(self, _secret: str) -> bytes:
        return b""

    def signed_by(self, _arrived: ReceivedRequest, keys: Sequence[bytes], _now: float) -> int | None:
        return 0 if keys else None

    def identity(self, _arrived: ReceivedRequest, _event: object) -> Identity:
        return Identity("evt_1")


def test_a_verifier_of_ones_own_is_not_handed_an_empty_key(box: todoku.App, world: World, poster: Poster) -> None:
    box.secrets("vault", lambda _path: "something")
    box.ingest("own", Careless((todoku.Ref("vault:x"),)), topic="x")
    assert poster.post("own", event(), {}).status_code == 503
    assert stored(world) == 0
    with pytest.raises(todoku.InvalidSetting, match="empty"):
        box.ingest("other", Careless(("a literal one",)), topic="x")


def test_a_secret_that_was_emptied_is_taken_back(box: todoku.App) -> None:
    """One that cannot be read keeps its last value. Who empties one means that it is over."""
    vault, now = {"x": SECRET}, [0.0]
    box.secrets("vault", vault.__getitem__)
    box.ingest("github", todoku.github(secrets=[todoku.Ref("vault:x")]), topic="x")
    keys, source = SourceKeys(box.outbox.secrets, monotonic=lambda: now[0]), box.sources["github"]
    assert asyncio.run(keys.of(source)) == (SECRET.encode(),)
    vault["x"], now[0] = " \n", 61.0
    for _ in range(2):
        with pytest.raises(NoSecret):
            asyncio.run(keys.of(source))
    vault["x"] = "another"
    assert asyncio.run(keys.of(source)) == (b"another",)


# ------------------------------------------------------------------------------------------------------- at start


def refuses_to_serve(box: todoku.App) -> None:
    with pytest.raises(todoku.InvalidSetting, match="empty"):
        _ = box.ingest_app
    with pytest.raises(todoku.InvalidSetting, match="empty"):
        server_app(box, Watching(box))


@pytest.mark.parametrize("blank", [blank for blank in BLANKS if "\0" not in blank])
def test_an_empty_variable_is_refused_where_requests_are_to_be_served(
    box: todoku.App, poster: Poster, world: World, monkeypatch: pytest.MonkeyPatch, blank: str
) -> None:
    """Before the first request. A server that runs already when the source is declared answers 503."""
    monkeypatch.setenv("STRIPE_SECRET", blank)
    box.ingest("stripe", todoku.stripe(secrets=[todoku.Ref("env:STRIPE_SECRET")]), topic="x")
    assert poster.post("stripe", event(), forged(KINDS[0], blank.strip())).status_code == 503
    assert stored(world) == 0
    other = todoku.App(world.url)
    other.ingest("stripe", todoku.stripe(secrets=[SECRET, todoku.Ref("env:STRIPE_SECRET")]), topic="x")
    refuses_to_serve(other)
    other.close()


@pytest.mark.parametrize("blank", BLANKS)
def test_an_empty_file_is_refused_where_requests_are_to_be_served(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, blank: str
) -> None:
    (tmp_path / "github").write_text(blank)
    monkeypatch.setenv("TODOKU_SECRETS_DIR", str(tmp_path))
    box = todoku.App(world.url)
    box.ingest("github", todoku.github(secrets=[todoku.Ref("file:github")]), topic="x")
    refuses_to_serve(box)
    (tmp_path / "github").write_text(f"{SECRET}\n")
    with serving(box):
        pass
    box.close()


def test_what_is_not_there_yet_hinders_no_start(world: World) -> None:
    """A secret that is mounted later, or kept by a server: it is asked for when the first request comes."""
    box = todoku.App(world.url)
    box.secrets("vault", lambda _path: "")
    box.ingest("stripe", todoku.stripe(secrets=[todoku.Ref("env:NOT_THERE"), todoku.Ref("vault:x")]), topic="x")
    with serving(box):
        pass
    box.close()


APP = """
import todoku
box = todoku.App()
box.route("**", to="warehouse")
box.ingest("stripe", todoku.stripe(secrets=[todoku.Ref("env:STRIPE_SECRET")]), topic="x")
"""


def test_a_daemon_does_not_start_with_an_empty_secret(shop: Shop, tmp_path: Path, url: str) -> None:
    (tmp_path / "empty_shop.py").write_text(APP)
    command = [sys.executable, "-m", "todoku", "run", "--app", "empty_shop:box", "--db", url, "--port", "0"]
    environ = {**os.environ, "STRIPE_SECRET": " ", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environ, check=False)
    assert done.returncode != 0
    assert "env:STRIPE_SECRET is empty" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_a_source_is_not_made_with_an_empty_text(box: todoku.App, kind: Kind) -> None:
    for blank in BLANKS:
        with pytest.raises(todoku.InvalidSetting):
            kind.make(secrets=[kind.secrets[0], blank])
        around_the_check = msgspec.structs.replace(kind.verifier(), secrets=(blank,))
        with pytest.raises(todoku.InvalidSetting):
            box.ingest("x", around_the_check, topic="x")


# ---------------------------------------------------------------------------------------------- signers and jobs


@pytest.mark.parametrize("given", [*BLANKS, [], (), [""], ["whsec_c2VjcmV0", " "], OF_ZEROS, "whsec_ICAg"])
def test_a_destination_does_not_sign_with_nothing(given: str | list[str]) -> None:
    with pytest.raises(todoku.InvalidSetting):
        todoku.http("https://shop.example/hooks", secret=given)


@pytest.mark.parametrize("blank", BLANKS)
def test_our_own_signatures_are_not_made_with_nothing(blank: str) -> None:
    body = b"{}"
    forged = _token_signed_by(blank, body)
    assert not verify_upstash(forged, body, keys=[blank], now=1000.0)
    with pytest.raises(todoku.InvalidSetting):
        upstash_signature("https://a.example/", body, key=blank, now=1000.0, jti="1")
    with pytest.raises(todoku.InvalidSetting):
        webhook_headers("msg_1", body, secrets=[blank], now=1000.0)
    with pytest.raises(todoku.InvalidSetting):
        signing_keys(f"{blank},{'x' * 16}")


def _token_signed_by(key: str, body: bytes) -> str:
    """A token that is right but for the key it was signed with."""
    right = upstash_signature("https://a.example/", body, key="a-key-of-sixteen-characters", now=1000.0, jti="1")
    signed = right.rpartition(".")[0]
    made = hmac.digest(key.encode(), signed.encode(), hashlib.sha256)
    return f"{signed}.{base64.urlsafe_b64encode(made).rstrip(b'=').decode()}"


def test_a_handler_is_not_given_an_empty_secret(box: todoku.App, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMTP_PASSWORD", " ")
    got: list[str] = []

    @box.job(max_retries=0)
    def login(password: todoku.Ref) -> None:
        got.append(password.get())

    @box.job(max_retries=0)
    async def login_async(password: todoku.Ref) -> None:
        got.append(await password.aget())

    login.enqueue(todoku.Ref("env:SMTP_PASSWORD"))
    login_async.enqueue(todoku.Ref("env:SMTP_PASSWORD"))
    box.drain()
    assert got == []
    assert [row.reason for row in world.deliveries()] == ["SECRET_EMPTY"] * 2
