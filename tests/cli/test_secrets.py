"""`secret://provider/path` in settings (S0-93): AWS, Google, Vault, and the errors where there is no secret."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import Run, Shop, refused, rows, said
from tests.support.secret_servers import SecretServer, Vault, server_of
from todoku.core.sealed import format_master_key

KINDS = ("vault", "gcp", "aws")


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecretServer]:
    with server_of(request.param, tmp_path_factory.mktemp(request.param)) as serving:
        yield serving


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    with server_of("vault", tmp_path) as serving:
        yield serving


def test_the_database_is_named_by_a_secret(server: SecretServer, shop: Shop) -> None:
    """S0-93: of both databases, by environment and by argument."""
    named = server.put(f"database-{os.urandom(4).hex()}", shop.world.url)
    shop.dead(1)
    (row,) = rows(shop.run("list", "--json", TODOKU_DATABASE=named, **server.environ))
    assert row["status"] == "aborted"
    assert rows(shop.run("list", "--json", "--db", named, TODOKU_DATABASE="", **server.environ)) == [row]


def test_master_keys_tokens_and_signing_keys_are_named_by_secrets(server: SecretServer, shop: Shop) -> None:
    """S0-93: the keys of a server are where the others of the house are."""
    place = os.urandom(4).hex()
    key, signing = format_master_key("2026-11", os.urandom(32)), "sig_" + "a" * 32 + ",sig_" + "b" * 32
    settings = {
        "TODOKU_MASTER_KEYS": server.put(f"master-{place}", key),
        "TODOKU_TOKEN": server.put(f"token-{place}", "a-token-of-at-least-16"),
        "TODOKU_SIGNING_KEYS": server.put(f"signing-{place}", signing),
    }
    (rotated,) = rows(shop.run("encryption-keys", "rotate", "--json", **settings, **server.environ))
    assert rotated["master_key"] == "2026-11"
    told = said(shop.run("signing-keys", **settings, **server.environ))
    assert told == said(shop.run("signing-keys", TODOKU_SIGNING_KEYS=signing))
    wrong = server.put(f"wrong-{place}", "hunter2")
    for name in settings:
        line = refused(shop.run("signing-keys", **{**settings, name: wrong}, **server.environ))
        assert "hunter2" not in line


def test_what_cannot_be_read_is_told_with_its_place_and_a_remedy(server: SecretServer, shop: Shop) -> None:
    """Each error names provider and path, says what to do, and shows no secret."""
    there = server.put(f"there-{os.urandom(4).hex()}", "hunter2")
    missing = refused(shop.run("list", TODOKU_DATABASE=server.absent(), **server.environ))
    denied = refused(shop.run("list", TODOKU_DATABASE=there, **server.denied()))
    away = refused(shop.run("list", TODOKU_DATABASE=there, **server.away()))
    wrong = refused(shop.run("list", TODOKU_DATABASE=there, **server.environ))
    for line in (missing, denied, away):
        assert f"database: {server.provider}:" in line
        assert re.search(r"check|set |needs|policy|role", line), line
    assert "no such secret" in missing
    assert "does not answer" in away
    assert "is not the URL of a database" in wrong
    assert not any("hunter2" in line for line in (missing, denied, away, wrong))


def test_a_login_by_approle_gets_a_token(vault: Vault, shop: Shop) -> None:
    named = vault.put("database", shop.world.url)
    address = {"VAULT_ADDR": vault.environ["VAULT_ADDR"], "HOME": "/nonexistent"}
    right = {**address, "VAULT_ROLE_ID": "shop", "VAULT_SECRET_ID": "s.role"}
    shop.dead(1)
    assert len(rows(shop.run("list", "--json", TODOKU_DATABASE=named, **right))) == 1
    wrong = refused(shop.run("list", TODOKU_DATABASE=named, **{**right, "VAULT_SECRET_ID": "s.wrong"}))
    assert "approle login was refused" in wrong
    assert "s.wrong" not in wrong
    assert "set VAULT_TOKEN" in refused(shop.run("list", TODOKU_DATABASE=named, **address))


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("secret://vault", "names no provider and path"),
        ("secret://nowhere/x", "no provider of secrets is called 'nowhere'; known: aws, env, file, gcp, vault"),
        ("postgresql://ada:secret://vault/x/y@host/shop", "without braces"),
        ("secret://vault/secret", "write the mount first"),
        ("secret://vault/secret/shop/both", "it has 2 fields: name one"),
        ("secret://vault/secret/shop/both#third", "no field of that name"),
        ("secret://env/NOT_THERE", "env:NOT_THERE is not set"),
        ("secret://file/database", "needs the setting secrets_dir"),
    ],
)
def test_a_name_that_is_no_secret_is_refused_in_one_sentence(vault: Vault, run: Run, named: str, told: str) -> None:
    vault.put("both", "hunter2")
    line = refused(run("list", TODOKU_DATABASE=named, **vault.environ))
    assert told in line
    assert "hunter2" not in line


def test_the_same_providers_serve_settings_and_refs(run: Run, tmp_path: Path) -> None:
    """A file below `secrets_dir`, and an environment variable; a list in todoku.toml is read entry by entry."""
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "database").write_text("sqlite:///shop.db\n", "utf-8")
    first, second = (format_master_key(name, os.urandom(32)) for name in ("new", "old"))
    (tmp_path / "todoku.toml").write_text(
        'database = "secret://file/database"\nsecrets_dir = "held"\n'
        'master_keys = ["secret://env/FIRST", "old:{secret://env/SECOND}"]\n', "utf-8",
    )  # fmt: skip
    known = {"FIRST": first, "SECOND": second.partition(":")[2]}
    said(run("migrate", **known))
    assert (tmp_path / "shop.db").exists()
    assert rows(run("encryption-keys", "list", "--json", **known)) == []


@pytest.mark.parametrize(("kind", "library"), [("aws", "botocore"), ("gcp", "google-auth")])
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    run: Run, tmp_path: Path, kind: str, library: str
) -> None:
    block = "import sys\nfor name in ('botocore', 'botocore.exceptions', 'google.auth', 'google.auth.exceptions'):\n"
    (tmp_path / "sitecustomize.py").write_text(f"{block}    sys.modules[name] = None\n", "utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    line = refused(run("list", TODOKU_DATABASE=f"secret://{kind}/shop/x", PYTHONPATH=path))
    assert f"needs {library}" in line
    assert f'pip install "todoku[{kind}]"' in line
