"""docs/tutorial.md is true: its commands and queries run as printed; the Japanese page has the same (S1-1, S1-52)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.shop_at_work import SHOP
from tests.support.labs import ROOT, Lab
from tests.support.ports import free_port

TUTORIAL = ROOT / "docs" / "tutorial.md"
JAPANESE = ROOT / "docs" / "ja" / "tutorial.md"


def fenced(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"^```([^\n`]*)\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.crash
def test_the_tutorial_s_commands_print_what_it_promises(backend: str, url: str, tmp_path: Path) -> None:
    lab = Lab(
        1, backend, url, tmp_path, page=TUTORIAL, PYTHONPATH=f"{ROOT}:{SHOP}", NATS_PORT=str(free_port())
    )  # fmt: skip
    printed = "".join(lab.run())
    assert "11111111-1111-4111-8111-111111111111 42" in printed
    assert ("outbox                2       2         0         0" in printed) == (backend == "sqlite")


def test_both_languages_have_the_same_commands_queries_and_answers() -> None:
    english, japanese = fenced(TUTORIAL), fenced(JAPANESE)
    assert len(english) > 20
    assert japanese == english


def test_the_pages_lead_to_each_other_and_to_the_seed_s_sources() -> None:
    for page, other in ((TUTORIAL, "ja/tutorial.md"), (JAPANESE, "../tutorial.md")):
        text = page.read_text("utf-8")
        assert f"({other})" in text
        for source in ("docs.aws.amazon.com", "debezium.io", "event-driven.io", "milanjovanovic.tech"):
            assert source in text, f"{page.name} does not name {source}"
