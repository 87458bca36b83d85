"""A server that cannot be had is a skip with its reason, and where it is required a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.services import PubsubServer, RabbitServer, running


class Nowhere(RabbitServer):
    """A server that is not installed."""

    program = Path("/nowhere/rabbitmq-server")


@pytest.fixture(autouse=True)
def _nobody_names_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TODOKU_TEST_AMQP", "TODOKU_TEST_PUBSUB", "TODOKU_TEST_REQUIRE_SERVICES"):
        monkeypatch.delenv(name, raising=False)


def test_a_missing_server_skips_its_tests_and_says_why(tmp_path: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match="RabbitMQ: not installed"), running(Nowhere, tmp_path):
        pass


def test_where_it_is_required_a_missing_server_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TODOKU_TEST_REQUIRE_SERVICES", "1")
    with pytest.raises(pytest.fail.Exception, match="RabbitMQ: not installed"), running(Nowhere, tmp_path):
        pass


def test_nobody_requires_an_emulator_that_cannot_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TODOKU_TEST_REQUIRE_SERVICES", "1")
    with (
        pytest.raises(pytest.skip.Exception, match=r"Pub/Sub: no package has its emulator"),
        running(PubsubServer, tmp_path),
    ):
        pass


def test_a_server_that_somebody_named_is_used_and_not_ours_to_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TODOKU_TEST_AMQP", "amqp://elsewhere/")
    with running(Nowhere, tmp_path) as service:
        assert service.url == "amqp://elsewhere/"
        with pytest.raises(pytest.skip.Exception, match="not ours to kill"):
            service.ours()
