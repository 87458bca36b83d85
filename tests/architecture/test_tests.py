"""The tests themselves (MEND-8): what failed is run once more, and what is skipped says what would make it run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.repeat import judge, without_group

ROOT = Path(__file__).parents[2]

# ------------------------------------------------------------------------------------------------------ once more

SOMEWHERE, IN_CRASH = "tests/api/test_it.py::test_it", "tests/crash/test_it.py::test_it"


def test_what_fails_twice_fails_the_run() -> None:
    judged = judge([SOMEWHERE, IN_CRASH], [SOMEWHERE, IN_CRASH])
    assert (judged.failed, judged.passed) == ((SOMEWHERE, IN_CRASH), False)


def test_what_passes_alone_is_flaky() -> None:
    judged = judge([SOMEWHERE], [])
    assert (judged.flaky, judged.passed) == ((SOMEWHERE,), True)


@pytest.mark.parametrize("directory", ["conformance", "crash", "model", "protocol"])
def test_where_a_flake_is_a_bug_it_fails_the_run(directory: str) -> None:
    test = f"tests/{directory}/test_it.py::test_it[sqlite]"
    judged = judge([test, SOMEWHERE], [])
    assert (judged.unexplained, judged.flaky, judged.passed) == ((test,), (SOMEWHERE,), False)


@pytest.mark.parametrize(
    ("noted", "plain"),
    [
        ("tests/a.py::test_b", "tests/a.py::test_b"),
        ("tests/a.py::test_b[x@y]", "tests/a.py::test_b[x@y]"),
        ("tests/a.py::test_b@broker sqs", "tests/a.py::test_b"),
        ("tests/a.py::test_b[x@y]@broker sqs", "tests/a.py::test_b[x@y]"),
        ("tests/a.py", "tests/a.py"),
    ],
)
def test_the_group_of_a_test_is_no_part_of_its_id(noted: str, plain: str) -> None:
    assert without_group(noted) == plain


ONCE = """
import pathlib
import random

import pytest

@pytest.mark.xdist_group("some group")
def test_it():
    before = pathlib.Path(__file__).with_suffix(".ran")
    ran, _ = before.exists(), before.touch()
    assert ran
"""
ALWAYS = "def test_it(): assert False"


@pytest.mark.parametrize(
    ("directory", "program", "code", "says"),
    [
        ("tests/api", ONCE, 0, "flaky: "),
        ("tests/crash", ONCE, 1, "a bug until it is explained"),
        ("tests/api", ALWAYS, 1, "failed again alone"),
        ("tests/api", "def test_it(): pass", 0, "1 passed"),
    ],
)
@pytest.mark.slow
def test_a_run_is_judged_by_what_failed_twice(
    tmp_path: Path, directory: str, program: str, code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TODOKU_TEST_SEED", "7")
    (tmp_path / directory).mkdir(parents=True)
    (tmp_path / directory / "test_it.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.repeat", "-n", "2", "--dist", "loadgroup", "-p", "no:todoku", directory],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, says in done.stdout) == (code, True), done.stdout + done.stderr
    test = f"{directory}/test_it.py::test_it"
    assert (f"TODOKU_TEST_SEED=7 {sys.executable} -m pytest '{test}'" in done.stdout) == ("passed" not in says)


# --------------------------------------------------------------------------------------------------------- skipped


def reasons(tree: ast.AST) -> Iterator[str]:
    """The texts of skips: what is given to `skip` and `skipif`, and what functions called `missing` return."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="skip"), args=[reason]):
                yield ast.unparse(reason)
            case ast.Call(func=ast.Attribute(attr="skipif"), keywords=keywords):
                yield from (ast.unparse(keyword.value) for keyword in keywords if keyword.arg == "reason")
            case ast.FunctionDef(name="missing"):
                returned = [one.value for one in ast.walk(node) if isinstance(one, ast.Return) and one.value]
                yield from (text for value in returned if '"' in (text := ast.unparse(value).replace("'", '"')))


def test_what_is_skipped_names_the_one_command_that_would_make_it_run() -> None:
    unnamed = [
        f"{path.relative_to(ROOT)}: {reason}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for reason in reasons(ast.parse(path.read_text("utf-8")))
        if reason.isidentifier() is False and re.search(r"`[^`]+`[\"']$", reason) is None
    ]
    assert unnamed == []
