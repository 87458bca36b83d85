"""Users of the dashboard over the admin API: for admins only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.serving import Server
from tests.web.signing_in import quick_hashes
from todoku.engine.sign_in import users

NEW = {"name": "ada/å", "password": "correct horse battery staple", "role": "operator", "why": "on call"}
PATH = "/users/ada/%C3%A5"


@pytest.fixture(autouse=True)
def _quick_hashes() -> Iterator[None]:
    with quick_hashes():
        yield


def test_they_are_created_listed_and_changed(server: Server) -> None:
    made = server.ask("POST", "/users", json=NEW, status=201)
    assert (made["name"], made["role"], made["disabled"]) == ("ada/å", "operator", False)
    assert "hash" not in made
    assert server.ask("GET", "/users") == {"items": [made]}
    for change in ({"role": "admin"}, {"disabled": True}, {"disabled": False}, {"password": "another long password"}):
        changed = server.ask("PATCH", PATH, json={**change, "why": "a test"})
        assert {name: changed[name] for name in change if name != "password"} == {
            name: value for name, value in change.items() if name != "password"
        }
    assert users.verify_user(server.box.store, "ada/å", "another long password") is not None
    actions = [row.act.action for row in reversed(server.box.store.audit.page(target="user:ada/å"))]
    assert actions == ["create as operator", "change role to admin", "disable", "enable", "change password"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/users", {**NEW, "password": "short"}, 422), ("POST", "/users", {**NEW, "role": "owner"}, 422),
        ("POST", "/users", {**NEW, "name": "a\nb"}, 422), ("POST", "/users", {**NEW, "why": ""}, 422),
        ("PATCH", "/users/nobody", {"role": "admin", "why": "x"}, 404),
        ("PATCH", "/users/nobody", {"role": "admin", "disabled": True, "why": "x"}, 422),
        ("PATCH", "/users/nobody", {"why": "x"}, 422),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(
    server: Server, method: str, path: str, body: dict[str, object], status: int
) -> None:
    answer = server.client("admin").request(method, f"/api/v1{path}", json=body)
    assert answer.status_code == status, answer.text
    assert "short" not in answer.text
    assert server.box.store.users.rows() == ()


@pytest.mark.parametrize("scope", ["read", "operate", "publish"])
def test_they_are_for_admins(server: Server, scope: str) -> None:
    client = server.client(scope)  # type: ignore[arg-type]
    assert client.get("/api/v1/users").status_code == 403
    assert client.post("/api/v1/users", json=NEW).status_code == 403
    assert client.patch("/api/v1/users/ada", json={"role": "admin", "why": "x"}).status_code == 403
