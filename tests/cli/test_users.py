"""`todoku users`: people who sign in to the dashboard; passwords are never arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from tests.support.world import World
from tests.web.signing_in import quick_hashes
from todoku.cli.main import cli
from todoku.core.errors import TodokuError
from todoku.engine.sign_in import users

PASSWORD = "correct horse battery staple"


@pytest.fixture(autouse=True)
def _quick_hashes() -> Iterator[None]:
    with quick_hashes():
        yield


def run(world: World, *words: str, given: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["users", *words, "--db", world.url], input=given)


def test_a_user_is_created_listed_changed_and_disabled_each_audited(world: World) -> None:
    made = run(world, "create", "ada", "--role", "operator", "--by", "ops", "--why", "on call", given=PASSWORD + "\n")
    assert (made.exit_code, made.output) == (0, "created ada (operator)\n")
    found = users.verify_user(world.store, "ada", PASSWORD)
    assert found is not None
    assert found.role == "operator"
    (listed,) = [json.loads(line) for line in run(world, "list", "--json").output.splitlines()]
    assert (listed["name"], listed["role"], listed["disabled"]) == ("ada", "operator", False)
    assert run(world, "role", "ada", "admin", "--by", "ops", "--why", "leads").output == "made admin: ada (admin)\n"
    assert run(world, "password", "ada", "--by", "ops", "--why", "lost", given="another long one\n").exit_code == 0
    assert users.verify_user(world.store, "ada", PASSWORD) is None
    assert run(world, "disable", "ada", "--by", "ops", "--why", "left").output == "disabled ada (admin, disabled)\n"
    assert users.verify_user(world.store, "ada", "another long one") is None
    assert run(world, "enable", "ada", "--by", "ops", "--why", "is back").output == "enabled ada (admin)\n"
    acts = [(row.act.action, row.act.why) for row in reversed(world.store.audit.page(by="ops"))]
    assert acts == [
        ("create as operator", "on call"), ("change role to admin", "leads"), ("change password", "lost"),
        ("disable", "left"), ("enable", "is back"),
    ]  # fmt: skip
    assert PASSWORD not in str(world.sql("select * from todoku_audit"))


def test_a_dry_run_changes_nothing_and_asks_for_no_password(world: World) -> None:
    assert "would create ada" in run(world, "create", "ada", "--dry-run").output
    assert world.store.users.rows() == ()
    run(world, "create", "ada", "--why", "x", given=PASSWORD)
    for words in (("role", "ada", "admin"), ("disable", "ada"), ("password", "ada")):
        assert "would" in run(world, *words, "--dry-run").output
    (row,) = world.store.users.rows()
    assert (row.role, row.disabled) == ("viewer", False)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (("create", "ada"), "short\n"), (("create", "ada"), ""), (("create", "a\nb"), PASSWORD),
        (("role", "nobody", "admin"), None), (("disable", "nobody"), None), (("password", "nobody"), PASSWORD),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(world: World, words: tuple[str, ...], given: str | None) -> None:
    refused = run(world, *words, "--why", "x", given=given)
    assert isinstance(refused.exception, TodokuError)
    assert refused.exception.hint
    assert world.store.users.rows() == ()


def test_a_role_that_there_is_not_is_wrong_usage(world: World) -> None:
    assert run(world, "create", "ada", "--role", "owner", given=PASSWORD).exit_code == 2


def test_nobody_to_list(world: World) -> None:
    assert run(world, "list").exit_code == 1
    assert run(world, "list", "--json").output == ""
