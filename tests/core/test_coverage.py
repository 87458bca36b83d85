"""The modules that decide are covered to the last branch, by their own tests alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from todoku.core import decision, failure, status

ROOT = Path(__file__).resolve().parents[2]
MODULES = {"decision": decision, "failure": failure, "status": status}
RULES = """
[run]
branch = true
relative_files = false
[report]
exclude_also =
    assert_never\\(
"""


def coverage(directory: Path, *arguments: str) -> None:
    """`python -m coverage …` with rules and data of its own, whatever measures the tests around it."""
    apart = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTEST", "TODOKU"))}
    command, *rest = arguments
    done = subprocess.run(
        [sys.executable, "-m", "coverage", command, f"--rcfile={directory / 'rules'}", *rest],
        cwd=ROOT,
        env=apart | {"COVERAGE_FILE": str(directory / "data")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_every_branch_of_the_decision_the_states_and_the_classifier_is_tested(tmp_path: Path) -> None:
    """Issue 2: 100 % branch coverage of decide, status, failure."""
    (tmp_path / "rules").write_text(RULES)
    include = ",".join(str(module.__file__) for module in MODULES.values())
    tests = [f"tests/core/test_{name}.py" for name in MODULES]
    coverage(
        tmp_path, "run", "--branch", f"--include={include}", "-m", "pytest", *tests, "-q", "-p", "no:cacheprovider"
    )
    coverage(tmp_path, "json", "-o", str(tmp_path / "report.json"))
    report = json.loads((tmp_path / "report.json").read_text())
    assert {Path(name).stem for name in report["files"]} == set(MODULES)
    for name, file in report["files"].items():
        assert file["summary"]["num_branches"] > 0, name
        assert (name, file["missing_lines"], file["missing_branches"]) == (name, [], [])
    assert report["totals"]["percent_covered"] == 100
