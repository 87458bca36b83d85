"""The examples are packages of their own: here they are imported from where they lie."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path[:0] = [
    str(EXAMPLES / name) for name in ("users", "orders", "shop", "payments", "projections", "capture", "fulfilment")
]

from users_example.application import Application  # noqa: E402

from tests.examples.users_at_work import PostOffice, application_at  # noqa: E402 - after the path


@pytest.fixture
def post_office() -> Iterator[PostOffice]:
    """A real SMTP server that can be told to refuse somebody."""
    office = PostOffice()
    yield office
    office.close()


@pytest.fixture
def application(url: str, tmp_path: Path, post_office: PostOffice) -> Iterator[Application]:
    """The example on each database, its mail going to the post office, without simulated durations."""
    with application_at(url, tmp_path, smtp_url=post_office.url) as application:
        yield application
