"""The dashboard without sign-in: for this machine only, and still with tokens in its forms."""

from __future__ import annotations

import pytest

from tests.support.serving import Server
from tests.web.signing_in import PASSWORD, Visitor, path_of
from todoku.core.errors import CannotStart
from todoku.daemon.http_start import refuse_open
from todoku.daemon.http_thread import listen
from todoku.web.page import WebPage
from todoku.web.site import PAGES

ACTS = [page for page in PAGES if page.method != "GET"]


@pytest.mark.parametrize(
    "headers",
    [{"host": "evil.example"}, {"x-forwarded-for": "1.2.3.4"}, {"x-forwarded-proto": "https"}, {"forwarded": "for=x"}],
)
def test_another_name_or_a_proxy_is_refused(served: Server, headers: dict[str, str]) -> None:
    visitor = Visitor(served.url)
    assert visitor.get("/account").status_code == 200
    assert visitor.get("/account", **headers).status_code == 403
    csrf = visitor.csrf("/users")
    assert visitor.post("/users", {"csrf": csrf}, **headers).status_code == 403
    visitor.close()


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.path)
def test_every_act_needs_the_token_of_the_page_and_the_own_site(served: Server, act: WebPage) -> None:
    path = path_of(act)
    visitor = Visitor(served.url)
    assert visitor.post(path, {}).status_code == 403
    assert visitor.post(path, {"csrf": "wrong"}).status_code == 403
    csrf = visitor.csrf("/users")
    assert visitor.post(path, {"csrf": csrf}, **{"sec-fetch-site": "cross-site"}).status_code == 403
    assert visitor.post(path, {"csrf": csrf}).status_code != 403
    visitor.close()


def test_an_act_is_signed_with_the_name_at_this_machine(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    visitor = Visitor(served.url)
    name = visitor.get("/account", accept="application/json").json()["name"]
    form = {"csrf": visitor.csrf("/users"), "name": "ada", "role": "viewer", "password": PASSWORD, "why": "a try"}
    assert visitor.post("/users", {**form, "by": "somebody else"}).status_code == 303
    assert [row.act.by for row in served.box.store.audit.page(target="user:ada")] == [name]
    visitor.close()


def test_there_is_nothing_to_sign_in_to(served: Server) -> None:
    assert served.client().get("/sign-in").status_code == 404


def test_it_does_not_start_where_others_could_reach_it() -> None:
    with pytest.raises(CannotStart, match="--open"):
        refuse_open(listen("0.0.0.0", 0))
    listening = listen("127.0.0.1", 0)
    refuse_open(listening)
    listening.close()
