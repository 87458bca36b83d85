"""Sign-in through an OpenID provider: a real one on this machine, and a real browser between the two."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.support.serving import PLAIN, Server, serving
from tests.web.browser import needs_browser, opened_page
from tests.web.signing_in import Visitor
from todoku.app import App
from todoku.web.cookies import OIDC_COOKIE, SESSION_COOKIE
from todoku.web.sign_in import SignInEntrance

with warnings.catch_warnings():  # the provider, which runs in this process, uses names of Authlib that are deprecated
    warnings.simplefilter("ignore")
    import oidc_provider_mock

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

USERS = [
    oidc_provider_mock.User(sub="ada", claims={"email": "ada@example.com", "email_verified": True, "groups": ["ops"]}),
    oidc_provider_mock.User(sub="eve", claims={"email": "ada@example.com", "email_verified": False}),
]


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    with oidc_provider_mock.run_server_in_thread(require_nonce=True, user_claims=USERS) as server:
        yield f"http://localhost:{server.server_port}"


@contextmanager
def closed(box: App, monkeypatch: pytest.MonkeyPatch, provider: str, **more: str) -> Iterator[Server]:
    given = {
        "OIDC_ISSUER": provider, "OIDC_CLIENT_ID": "todoku", "OIDC_CLIENT_SECRET": "hush",
        "OIDC_ROLES": "groups=ops:operator", **more,
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(f"TODOKU_{name}", value)
    own = App(box.settings.database)
    with serving(own, local=True, entrance=SignInEntrance) as server:
        yield server
    own.close()


def authorize(url: str, sub: str) -> str:
    """Signs in at the provider as a person does; the URL to which it sends the browser back."""
    with httpx.Client(trust_env=False, verify=PLAIN) as client:
        return client.post(url, data={"sub": sub}).headers["location"]


def back(visitor: Visitor, url: str) -> httpx.Response:
    parts = urlsplit(url)
    return visitor.get(f"{parts.path}?{parts.query}")


@needs_browser
def test_a_person_signs_in_through_the_provider(
    browser: Browser, box: App, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        closed(box, monkeypatch, provider) as server,
        opened_page(browser, server.url) as (page, complaints),
    ):
        complaints.expected |= {"localhost", "jsdelivr"}  # the provider's own page, and what that loads
        page.goto("/account?from=a+link")
        page.get_by_role("link", name="Sign in through localhost").click()
        page.locator("button[name=sub][value=ada]").first.click()
        expect(page).to_have_title("Account · todoku")
        expect(page.get_by_role("main")).to_contain_text("ada@example.com")
        expect(page.get_by_role("main")).to_contain_text("operator")
        assert page.url == f"{server.url}/account?from=a+link"
        assert {cookie["name"] for cookie in page.context.cookies(server.url)} >= {SESSION_COOKIE}
        page.get_by_role("button", name="Sign out", exact=True).click()
        expect(page).to_have_title("Sign in · todoku")
    assert [row.act.target for row in box.store.audit.page(action="sign in")] == [f"oidc:ada {provider}"]


def test_the_request_has_a_challenge_a_state_and_a_nonce(
    box: App, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closed(box, monkeypatch, provider) as server:
        visitor = Visitor(server.url)
        sent = visitor.get("/sign-in/oidc?next=/account")
        query = parse_qs(urlsplit(sent.headers["location"]).query)
        assert query["code_challenge_method"] == ["S256"]
        assert all(query[name][0] for name in ("code_challenge", "state", "nonce"))
        assert query["redirect_uri"] == [f"{server.url}/sign-in/oidc/callback"]
        assert "hush" not in sent.headers["location"]
        kept = visitor.given[OIDC_COOKIE]
        assert (kept["secure"], kept["httponly"], kept["samesite"].lower(), kept["max-age"]) == (
            True, True, "lax", "600",
        )  # fmt: skip
        entered = back(visitor, authorize(sent.headers["location"], "ada"))
        assert (entered.status_code, entered.headers["location"]) == (303, "/account")
        assert OIDC_COOKIE not in visitor.cookies, "it is used up"
        visitor.close()


def test_who_has_no_role_is_refused_with_a_sentence(box: App, provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closed(box, monkeypatch, provider, OIDC_ROLES="email=ada@example.com:admin") as server:
        visitor = Visitor(server.url)
        sent = visitor.get("/sign-in/oidc")
        refused = back(visitor, authorize(sent.headers["location"], "eve"))
        assert refused.status_code == 403, "the address is not verified"
        assert "no role here is for you" in refused.text
        assert SESSION_COOKIE not in visitor.cookies
        visitor.close()


def test_without_rules_nobody_gets_in(box: App, provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closed(box, monkeypatch, provider, OIDC_ROLES="") as server:
        visitor = Visitor(server.url)
        sent = visitor.get("/sign-in/oidc")
        assert back(visitor, authorize(sent.headers["location"], "ada")).status_code == 403
        visitor.close()


def test_an_answer_that_was_not_asked_for_here_is_refused(
    box: App, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closed(box, monkeypatch, provider) as server:
        visitor, eve = Visitor(server.url), Visitor(server.url)
        answer = authorize(eve.get("/sign-in/oidc").headers["location"], "ada")
        assert back(visitor, answer).status_code == 403, "another browser began it"
        visitor.get("/sign-in/oidc")
        assert back(visitor, answer).status_code == 403, "another state"
        cookie = eve.cookies[OIDC_COOKIE]
        eve.cookies[OIDC_COOKIE] = ("b" if cookie[0] == "a" else "a") + cookie[1:]
        assert back(eve, answer).status_code == 403, "a cookie that was changed"
        mine = visitor.get("/sign-in/oidc").headers["location"]
        state = parse_qs(urlsplit(mine).query)["state"][0]
        assert visitor.get(f"/sign-in/oidc/callback?error=access_denied&state={state}").status_code == 403
        visitor.get("/sign-in/oidc")
        assert visitor.get("/sign-in/oidc/callback").status_code == 403
        assert SESSION_COOKIE not in visitor.cookies
        for each in (visitor, eve):
            each.close()


def test_a_code_works_once_and_a_code_that_is_none_does_not(
    box: App, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closed(box, monkeypatch, provider) as server:
        visitor = Visitor(server.url)
        location = visitor.get("/sign-in/oidc").headers["location"]
        kept = visitor.cookies[OIDC_COOKIE]
        answer = authorize(location, "ada")
        assert back(visitor, answer).status_code == 303
        visitor.cookies = {OIDC_COOKIE: kept}
        assert back(visitor, answer).status_code == 502
        state = parse_qs(urlsplit(visitor.get("/sign-in/oidc").headers["location"]).query)["state"][0]
        failed = visitor.get(f"/sign-in/oidc/callback?code=none&state={state}")
        assert failed.status_code == 502
        assert "hush" not in failed.text
        visitor.close()


def test_a_provider_that_does_not_answer_is_a_sentence(box: App, monkeypatch: pytest.MonkeyPatch) -> None:
    with closed(box, monkeypatch, "http://localhost:9") as server:
        visitor = Visitor(server.url)
        assert visitor.get("/sign-in").status_code == 200
        failed = visitor.get("/sign-in/oidc")
        assert failed.status_code == 502
        assert "failed" in failed.text
        visitor.close()
