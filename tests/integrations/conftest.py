"""What the tests of integrations share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.recording import SentryRecorder, sentry_here


@pytest.fixture
def sentry() -> Iterator[SentryRecorder]:
    """The SDK of this process, initialised as an application does it, and ended afterwards."""
    with sentry_here() as server:
        yield server
