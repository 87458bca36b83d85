"""An App on each database, and what is logged."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

import todoku
from todoku.core.redaction import MASKED
from todoku.engine.observability.log import LOGGER, configure_logging, mask_fields


@pytest.fixture
def box(url: str) -> Iterator[todoku.App]:
    box = todoku.App(url)
    box.migrate()
    yield box
    box.close()


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Everything that is logged, at the most talkative level."""
    root = logging.getLogger()
    before = root.handlers[:], root.level, LOGGER.handlers[:], LOGGER.level, LOGGER.propagate
    stream = io.StringIO()
    configure_logging("json", "debug", stream=stream)
    yield stream
    logging.captureWarnings(False)
    root.handlers[:], root.level, LOGGER.handlers[:], LOGGER.level, LOGGER.propagate = before
    mask_fields(MASKED)
