"""Credentials of destinations from a server of secrets (S0-93): read when they are needed, never shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import todoku
from tests.destinations.test_contract import outgoing
from tests.support.secret_servers import Vault, server_of
from tests.support.services import ValkeyServer, running
from tests.support.world import World
from todoku.core.failure import DeliveryError
from todoku.core.outcome import Retry

PASSWORD = "h/un ter?2@"


@pytest.fixture
def vault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vault]:
    with server_of("vault", tmp_path) as serving:
        for name, value in serving.environ.items():
            monkeypatch.setenv(name, value)
        yield serving


@pytest.fixture
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that asks for a password; its address without one."""
    with running(ValkeyServer, tmp_path_factory.mktemp("valkey")) as server:
        import redis

        with redis.Redis.from_url(server.url) as client:
            client.config_set("requirepass", PASSWORD)
        yield server.url.removeprefix("redis://")


@pytest.fixture
def box(world: World) -> Iterator[todoku.App]:
    box = todoku.App(world.url)
    yield box
    box.close()


def sent(valkey: str) -> list[bytes]:
    import redis

    with redis.Redis.from_url(f"redis://{valkey}", password=PASSWORD) as client:
        return [fields[b"payload"] for _, fields in client.xrange("orders")]


@pytest.mark.parametrize("how", ["within the url", "the url", "an option of the client", "a provider of the App"])
def test_a_broker_gets_its_password_from_a_secret(box: todoku.App, vault: Vault, valkey: str, how: str) -> None:
    """S0-93: with todoku's own Vault, or the function that the application has."""
    named, whole = vault.put("password", PASSWORD), vault.put("url", f"redis://:h%2Fun%20ter%3F2%40@{valkey}")
    url, client = {
        "within the url": (f"redis://:{{{named}}}@{valkey}", {}),
        "the url": (whole, {}),
        "an option of the client": (f"redis://{valkey}", {"password": named}),
        "a provider of the App": (f"redis://:{{secret://ours/x}}@{valkey}", {}),
    }[how]
    box.secrets("ours", {"x": PASSWORD}.__getitem__)
    box.route("order.*", to=todoku.redis("orders", url=url, client=client))
    assert vault.asked == [], "nothing is read before it is needed"
    box.publish("order.created", {"amount": 42}, tx=None)
    assert box.drain() == 1
    assert sent(valkey) == [b'{"amount":42}']


async def test_what_cannot_be_read_is_tried_again_and_names_the_secret(box: todoku.App, vault: Vault) -> None:
    to = todoku.redis("orders", url="secret://vault/secret/shop/missing#url")
    box.route("order.*", to=to)
    (outcome,) = await to.send([outgoing(1)])
    assert isinstance(outcome, Retry)
    assert outcome.reason == "SECRET_NOT_FOUND"
    assert "vault:secret/shop/missing#url" in outcome.detail
    with pytest.raises(DeliveryError, match="vault:secret/shop/missing#url"):  # deliveries wait meanwhile
        await to.ping()


async def test_an_error_of_the_client_library_does_not_quote_the_secret(box: todoku.App, vault: Vault) -> None:
    """Kafka's quotes the addresses that it was given."""
    to = todoku.kafka("orders", servers=vault.put("servers", "127.0.0.77:1"))
    box.route("order.*", to=to)
    (outcome,) = await to.send([outgoing(1)])
    assert isinstance(outcome, Retry)
    assert (outcome.reason, outcome.detail) == ("BROKER_DOWN", "KafkaConnectionError")
    with pytest.raises(DeliveryError) as down:
        await to.ping()
    assert "127.0.0.77" not in str(down.value)


async def test_without_an_app_there_is_nobody_who_reads_secrets() -> None:
    destination = todoku.redis("orders", url="secret://vault/secret/shop/url#value")
    (outcome,) = await destination.send([outgoing(1)])
    assert isinstance(outcome, Retry)
    assert outcome.reason == "SECRET_UNAVAILABLE"


def test_headers_and_signatures_of_http_come_from_secrets(
    box: todoku.App, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0-93: also what signs webhooks."""
    signing = "whsec_" + "c2VjcmV0" * 4
    to: Any = todoku.http(
        "https://hooks.example/orders",
        headers={"Authorization": f"Bearer {{{vault.put('token', 'tok en')}}}"},
        secret=[vault.put("signing", signing), signing],
    )
    posts: list[Any] = []

    async def post(post: Any) -> Any:
        posts.append(post)
        return todoku.Done()

    monkeypatch.setattr(to, "sent", post)
    box.route("order.*", to=to)
    box.publish("order.created", {"amount": 42}, tx=None)
    box.drain()
    assert posts[0].headers["Authorization"] == "Bearer tok en"
    first, second = posts[0].headers["webhook-signature"].split(" ")
    assert first == second


def test_a_source_refuses_the_name_of_a_secret_as_its_secret() -> None:
    """Anybody could sign with it: it is written where everybody reads it."""
    with pytest.raises(todoku.InvalidSetting, match=r"todoku\.Ref"):
        todoku.stripe(secrets=["secret://vault/secret/stripe#key"])
    assert todoku.Ref("secret://vault/secret/stripe#key") == todoku.Ref("vault:secret/stripe#key")


async def test_a_handler_reads_from_the_same_servers(vault: Vault) -> None:
    ref = todoku.Ref(vault.put("smtp", "hunter2"))
    assert await ref.aget() == ref.get() == "hunter2"
    with pytest.raises(DeliveryError, match="SECRET_NOT_FOUND"):
        todoku.Ref(vault.absent()).get()
