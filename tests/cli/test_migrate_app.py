"""`todoku migrate` with an App records what the App declares, before any daemon runs."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner

from todoku.cli.main import cli

SHOP = """
import todoku
box = todoku.App()
box.projection("history", topics="order.*", key="id", to=todoku.chronicle(lambda change, tx: None))
"""


@pytest.mark.parametrize("named", ["by the option", "by the environment"])
def test_migrate_records_the_projections_of_the_app(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    module = f"shop_{uuid4().hex}"  # a process imports a module once
    (tmp_path / f"{module}.py").write_text(SHOP, "utf-8")
    monkeypatch.chdir(tmp_path)
    option = ["--app", f"{module}:box"] if named == "by the option" else []
    environ = {"TODOKU_DATABASE": url} | ({} if option else {"TODOKU_APP": f"{module}:box"})
    done = CliRunner().invoke(cli, ["migrate", *option], env=environ)
    assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(cli, ["projection", "list"], env={"TODOKU_DATABASE": url})
    assert "history" in shown.output


def test_migrate_without_an_app_makes_the_tables_alone(url: str) -> None:
    done = CliRunner().invoke(cli, ["migrate", "--db", url])
    assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(cli, ["projection", "list", "--db", url])
    assert shown.output == "no projections\n"
