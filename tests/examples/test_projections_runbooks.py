"""The runbooks of search and chronicle: their sections, and each command and query in them as printed (S2-38)."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from tests.examples.projections_at_work import projections_at
from tests.examples.test_projections_labs import SECONDS, needs_search, ports
from tests.support.labs import ROOT, Lab, answered
from todoku.cli.main import cli

SEARCH, CHRONICLE = ROOT / "docs" / "runbook-search.md", ROOT / "docs" / "runbook-chronicle.md"
PAGES = (SEARCH, CHRONICLE)
SECTIONS = ("Start order", "The smallest snapshot", "When a replay is accepted", "Rebuild", "The flag", "Common faults")


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_the_runbook_of_the_chronicle_does_what_it_says(backend: str, url: str, tmp_path: Path) -> None:
    Lab(1, backend, url, tmp_path, page=CHRONICLE, seconds=SECONDS, **ports()).run()


@needs_search
@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_the_runbook_of_search_does_what_it_says(backend: str, url: str, tmp_path: Path) -> None:
    Lab(1, backend, url, tmp_path, page=SEARCH, seconds=SECONDS, **ports()).run()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_runbook_has_every_section_that_the_seed_asks_for(page: Path) -> None:
    headings = re.findall(r"^## (.*)$", page.read_text("utf-8"), re.MULTILINE)
    assert [section for section in SECTIONS if section not in headings] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_queries_that_stand_alone_run_on_both_databases(page: Path, backend: str, url: str) -> None:
    """Those of a lab run with it."""
    with projections_at(url):
        for sql in re.findall(r"^```sql\b[^\n]*\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            answered(sql, backend, url)


def commands(page: Path) -> list[str]:
    """Every `todoku …` that the page lets a person type, in blocks and in tables."""
    text = page.read_text("utf-8")
    blocks = re.findall(r"^```sh[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in re.findall(r"(?<![\w./])todoku [a-z][^|>&#)\n]*", block)]
    return sorted({*lines, *re.findall(r"`(todoku [a-z][^`]*)`", text)})


@pytest.mark.parametrize("line", sorted({line for page in PAGES for line in commands(page)}))
def test_the_runbooks_use_commands_and_options_that_exist(line: str) -> None:
    words = shlex.split(line.replace("$(", "").replace("…", "x"))[1:]
    command: click.Command = cli.commands[words[0]]
    if isinstance(command, click.Group) and len(words) > 1:
        command = command.commands[words[1]]
    with click.Context(command) as context:
        options = {name for parameter in command.get_params(context) for name in parameter.opts}
    assert {word.split("=")[0] for word in words if word.startswith("--")} <= options


def test_the_reasons_of_the_pages_are_those_of_the_program() -> None:
    source = "".join(path.read_text("utf-8") for path in sorted((ROOT / "src").rglob("*.py")))
    text = "".join(page.read_text("utf-8") for page in PAGES)
    named = set(re.findall(r"`(SEARCH_[A-Z]+|UNORDERED|BAD_PAYLOAD)`", text))
    assert len(named) >= 8
    assert {reason for reason in named if f'"{reason}"' not in source and f"'{reason}'" not in source} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_alerts_of_the_pages_are_in_the_rules(page: Path) -> None:
    rules = (ROOT / "deploy" / "prometheus" / "todoku.rules.yml").read_text("utf-8")
    named = set(re.findall(r"`(Todoku\w+)`", page.read_text("utf-8")))
    assert named
    assert {name for name in named if f"alert: {name}\n" not in rules} == set()
