"""Signing in to the dashboard: who gets in, what the cookies say, what is refused, and how it ends."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.support.serving import SOMEBODY, Server, serving
from tests.web.browser import needs_browser, opened_page
from tests.web.signing_in import PASSWORD, Visitor, create, path_of, quick_hashes
from todoku.api.problem import Refused
from todoku.app import App
from todoku.engine.http import api_tokens
from todoku.engine.observability import metrics
from todoku.engine.sign_in import users
from todoku.web import password_gate
from todoku.web.cookies import FORM_COOKIE, SESSION_COOKIE
from todoku.web.page import WebPage as DeclaredPage
from todoku.web.password_gate import PasswordGate
from todoku.web.sign_in import SignInEntrance
from todoku.web.site import PAGES

ACTS = [page for page in PAGES if page.method != "GET"]


@pytest.fixture(autouse=True)
def _quick_hashes() -> Iterator[None]:
    with quick_hashes():
        yield


@pytest.fixture
def closed(box: App) -> Iterator[Server]:
    """The dashboard, with sign-in."""
    with serving(box, local=True, entrance=SignInEntrance) as server:
        yield server


@pytest.fixture
def visitor(closed: Server) -> Iterator[Visitor]:
    visitor = Visitor(closed.url)
    yield visitor
    visitor.close()


def another(server: Server) -> Visitor:
    return Visitor(server.url)


# --------------------------------------------------------------------------------------------- who gets in


def test_without_a_session_a_page_leads_to_the_sign_in_and_back(closed: Server, visitor: Visitor, box: App) -> None:
    create(box, "ada", "viewer")
    sent = visitor.get("/account?x=1")
    assert (sent.status_code, sent.headers["location"]) == (303, "/sign-in?next=%2Faccount%3Fx%3D1")
    entered = visitor.sign_in("ada", next="/account?x=1")
    assert (entered.status_code, entered.headers["location"]) == (303, "/account?x=1")
    assert "ada" in visitor.get("/account").text


@pytest.mark.parametrize("path", ["//evil.example", "https://evil.example", "/\\evil.example"])
def test_the_sign_in_leads_to_pages_of_its_own_only(visitor: Visitor, box: App, path: str) -> None:
    create(box, "ada", "viewer")
    assert "evil" not in visitor.get(f"/sign-in?next={path}").text
    assert visitor.sign_in("ada", next=path).headers["location"] == "/"


@pytest.mark.parametrize(
    "headers", [{"accept": "application/json"}, {"x_todoku_live": "1"}, {"sec_fetch_mode": "cors"}]
)
def test_programs_and_live_regions_are_told_by_status(visitor: Visitor, headers: dict[str, str]) -> None:
    assert visitor.get("/account", **headers).status_code == 401
    assert visitor.get("/live").status_code in (303, 401)


def test_a_bearer_token_works_as_everywhere(closed: Server) -> None:
    assert closed.client("read").get("/account").status_code == 200
    assert closed.client("publish").get("/account").status_code == 403
    assert closed.client("read").get("/users").status_code == 403
    wrong = closed.client().get("/account", headers={"authorization": "Bearer wrong", "accept": "application/json"})
    assert wrong.status_code == 401


def test_basic_credentials_which_a_proxy_asks_for_are_no_token(visitor: Visitor, box: App) -> None:
    create(box, "ada", "viewer")
    visitor.sign_in("ada")
    assert visitor.get("/account", authorization="Basic YWRhOmFkYQ==").status_code == 200


@pytest.mark.parametrize(("scope", "role"), [("read", "viewer"), ("operate", "operator"), ("admin", "admin")])
def test_an_api_token_signs_in_with_the_role_of_its_scope(
    closed: Server, visitor: Visitor, scope: str, role: str
) -> None:
    token = closed.token(scope, name="laptop")  # type: ignore[arg-type]
    assert visitor.sign_in_with(token).status_code == 303
    account = visitor.get("/account", accept="application/json").json()
    assert account == {"name": "laptop", "role": role, "has_session": True, "read_only": False}


def test_a_token_that_may_not_read_and_an_unknown_one_are_refused(closed: Server, visitor: Visitor) -> None:
    assert visitor.sign_in_with(closed.token("publish")).status_code == 403
    assert visitor.sign_in_with("todoku_none").status_code == 401
    assert visitor.get("/account").status_code == 303


def test_wrong_unknown_and_disabled_look_the_same(visitor: Visitor, box: App) -> None:
    create(box, "ada", "viewer")
    create(box, "bob", "viewer")
    users.set_disabled(box.store, SOMEBODY, name="bob", disabled=True)
    tries = [("ada", "a wrong password"), ("nobody", PASSWORD), ("bob", PASSWORD), ("", PASSWORD)]
    answers = [visitor.sign_in(user, password) for user, password in tries]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.text.split("</header>")[1].replace(visitor.csrf("/sign-in"), "") for answer in answers}) == 1


def test_an_unknown_user_costs_a_hash_too(visitor: Visitor, box: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constant time: the same work is done whether the user exists or not."""
    create(box, "ada", "viewer")
    checked: list[str | None] = []
    monkeypatch.setattr(users, "verify_password", lambda stored, _: bool(checked.append(stored)))  # type: ignore[func-returns-value]
    for name in ("ada", "nobody"):
        assert visitor.sign_in(name, "a wrong password").status_code == 401
    assert len(checked) == 2
    assert checked[0] is not None
    assert checked[1] is None


# ------------------------------------------------------------------------------------- cookies and sessions


def test_the_cookies_are_for_this_host_and_for_no_script(visitor: Visitor, box: App) -> None:
    create(box, "ada", "viewer")
    visitor.sign_in("ada")
    for name in (SESSION_COOKIE, FORM_COOKIE):
        given = visitor.given[name]
        assert name.startswith("__Host-")
        assert (given["secure"], given["httponly"], given["path"], given["domain"]) == (True, True, "/", "")
        assert given["samesite"].lower() == "lax"
    assert 0 < int(visitor.given[SESSION_COOKIE]["max-age"]) <= box.settings.web_session_sec


def test_a_session_gets_a_new_id_at_every_sign_in(visitor: Visitor, closed: Server, box: App) -> None:
    """Session fixation: an id that was planted in the browser, or used before, opens nothing."""
    create(box, "ada", "viewer")
    planted = "p" * 43
    visitor.cookies[SESSION_COOKIE] = planted
    visitor.sign_in("ada")
    first = visitor.cookies[SESSION_COOKIE]
    assert first != planted
    visitor.cookies.pop(SESSION_COOKIE)
    thief = another(closed)
    thief.cookies[SESSION_COOKIE] = first
    assert thief.get("/account").status_code == 200
    visitor.cookies[SESSION_COOKIE] = first
    csrf = visitor.csrf("/account")
    visitor.post("/sign-out", {"csrf": csrf})
    visitor.sign_in("ada")
    assert visitor.cookies[SESSION_COOKIE] not in (first, planted)
    assert thief.get("/account").status_code == 303
    thief.close()


def test_a_second_sign_in_ends_the_first_session_of_the_browser(visitor: Visitor, closed: Server, box: App) -> None:
    create(box, "ada", "viewer")
    create(box, "bob", "viewer")
    visitor.sign_in("ada")
    first = visitor.cookies.pop(SESSION_COOKIE)
    csrf = visitor.csrf("/sign-in")
    visitor.cookies[SESSION_COOKIE] = first
    visitor.post("/sign-in", {"csrf": csrf, "user": "bob", "password": PASSWORD})
    assert "bob" in visitor.get("/account").text
    visitor.cookies[SESSION_COOKIE] = first
    assert visitor.get("/account").status_code == 303


def test_signing_out_ends_the_session_on_the_server_and_everywhere_all(
    visitor: Visitor, closed: Server, box: App
) -> None:
    create(box, "ada", "viewer")
    other = another(closed)
    for each in (visitor, other):
        each.sign_in("ada")
    kept = visitor.cookies[SESSION_COOKIE]
    assert visitor.post("/sign-out", {"csrf": visitor.csrf("/account")}).headers["location"] == "/sign-in"
    assert SESSION_COOKIE not in visitor.cookies
    visitor.cookies[SESSION_COOKIE] = kept
    assert visitor.get("/account").status_code == 303
    visitor.cookies.pop(SESSION_COOKIE)
    visitor.sign_in("ada")
    assert other.get("/account").status_code == 200
    visitor.post("/sign-out", {"csrf": visitor.csrf("/account"), "everywhere": "1"})
    assert other.get("/account").status_code == 303
    other.close()


def test_a_session_ends_with_the_users_role(visitor: Visitor, box: App) -> None:
    create(box, "ada", "admin")
    visitor.sign_in("ada")
    assert visitor.get("/users").status_code == 200
    users.set_role(box.store, SOMEBODY, name="ada", role_name="viewer")
    assert visitor.get("/users").status_code == 303
    visitor.sign_in("ada")
    assert visitor.get("/users").status_code == 403


def test_a_revoked_token_ends_its_sessions(visitor: Visitor, closed: Server, box: App) -> None:
    token, text = api_tokens.create(box.store, SOMEBODY, name="laptop", scopes=["read"])
    visitor.sign_in_with(text)
    assert visitor.get("/account").status_code == 200
    assert token.id is not None
    api_tokens.revoke(box.store, token.id, SOMEBODY)
    assert visitor.get("/account").status_code == 303


# --------------------------------------------------------------------------------- forms and other sites


def acting(visitor: Visitor, act: DeclaredPage, **headers: str) -> int:
    """The status of an act with empty fields and a right token; more than its form is needed for success."""
    return visitor.post(path_of(act), {"csrf": visitor.csrf("/account")}, **headers).status_code


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.path)
def test_every_act_refuses_a_viewer_a_missing_token_another_site_and_no_session(
    visitor: Visitor, closed: Server, box: App, act: DeclaredPage
) -> None:
    path = path_of(act)
    assert visitor.post(path, {}).status_code == 401, "no session"
    create(box, "view", "viewer")
    create(box, "root", "admin")
    visitor.sign_in("view")
    assert acting(visitor, act) == 403, "a viewer"
    visitor.post("/sign-out", {"csrf": visitor.csrf("/account")})
    visitor.sign_in("root")
    assert visitor.post(path, {}).status_code == 403, "no token"
    assert visitor.post(path, {"csrf": "wrong"}).status_code == 403, "a wrong token"
    csrf = {"csrf": visitor.csrf("/account")}
    for headers in (
        {"sec_fetch_site": "cross-site"}, {"sec_fetch_site": "same-site"}, {"sec_fetch_site": "none"},
        {"sec_fetch_site": "", "origin": "https://evil.example"}, {"sec_fetch_site": "", "origin": "null"},
        {"sec_fetch_site": "", "origin": ""}, {"sec_fetch_site": "", "origin": closed.url + "1"},
    ):  # fmt: skip
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        assert visitor.post(path, csrf, **sent).status_code == 403, headers


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.path)
def test_every_act_is_refused_while_the_dashboard_is_read_only(
    box: App, act: DeclaredPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(box, "root", "admin")
    monkeypatch.setenv("TODOKU_WEB_READ_ONLY", "1")
    reading = App(box.settings.database)
    with serving(reading, local=True, entrance=SignInEntrance) as server:
        visitor = another(server)
        visitor.sign_in("root")
        assert acting(visitor, act) == 403
        assert "read-only" in visitor.get("/account").text
        visitor.post("/sign-out", {"csrf": visitor.csrf("/account")})
        assert visitor.get("/account").status_code == 303
        visitor.close()
    reading.close()


def acts_shown(visitor: Visitor) -> dict[str, list[str]]:
    """The acts that pages offer, by page; signing out is none."""
    paths = [page.path for page in PAGES if page.method == "GET" and "{" not in page.path]
    found = {path: re.findall(r'method="post" action="([^"]+)"', visitor.get(path).text) for path in paths}
    return {path: acts for path, acts in found.items() if set(acts) - {"/sign-out"}}


@pytest.mark.parametrize(("role", "read_only"), [("viewer", ""), ("admin", "1")])
def test_acts_that_would_be_refused_are_not_shown(
    box: App, monkeypatch: pytest.MonkeyPatch, role: str, read_only: str
) -> None:
    create(box, "ada", role)
    create(box, "root", "admin")
    box.migrate()
    box.route("**", to="warehouse")
    box.publish("order.created", {}, tx=None)
    monkeypatch.setenv("TODOKU_WEB_READ_ONLY", read_only)
    own = App(box.settings.database)
    with serving(own, local=True, entrance=SignInEntrance) as server:
        visitor = another(server)
        visitor.sign_in("ada")
        assert acts_shown(visitor) == {}
        navigation = visitor.get("/account").text.split("<nav")[1].split("</nav>")[0]
        links = re.findall(r'href="([^"]+)"', navigation)
        assert len(links) > 5
        assert {visitor.get(link).status_code for link in links} == {200}, "no link leads to a refusal"
        assert ("/users" in links) == (role == "admin")
        if not read_only:
            visitor.post("/sign-out", {"csrf": visitor.csrf("/account")})
            visitor.sign_in("root")
            assert {"/users", "/queues"} <= set(acts_shown(visitor)), "who may act is shown them"
        visitor.close()
    own.close()


def test_a_session_of_another_person_does_not_make_a_token_right(visitor: Visitor, closed: Server, box: App) -> None:
    create(box, "root", "admin")
    create(box, "eve", "admin")
    eve = another(closed)
    eve.sign_in("eve")
    visitor.sign_in("root")
    assert visitor.post("/users", {"csrf": eve.csrf("/account")}).status_code == 403
    eve.close()


@pytest.mark.parametrize(
    "headers", [{"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "", "origin": "https://evil.example"}]
)
def test_another_site_neither_signs_a_browser_in_nor_out(visitor: Visitor, box: App, headers: dict[str, str]) -> None:
    create(box, "ada", "viewer")
    form = {"csrf": visitor.csrf("/sign-in"), "user": "ada", "password": PASSWORD}
    assert visitor.post("/sign-in", form, **headers).status_code == 403
    visitor.sign_in("ada")
    assert visitor.post("/sign-out", {"csrf": visitor.csrf("/account")}, **headers).status_code == 403
    assert visitor.get("/account").status_code == 200


def test_a_form_of_another_browser_signs_nobody_in(visitor: Visitor, closed: Server, box: App) -> None:
    """Login CSRF: the attacker's own form has a token that is bound to the attacker's cookie."""
    create(box, "eve", "viewer")
    eve = another(closed)
    form = {"csrf": eve.csrf("/sign-in"), "user": "eve", "password": PASSWORD}
    visitor.get("/sign-in")
    assert visitor.post("/sign-in", form).status_code == 403
    visitor.cookies.clear()
    assert visitor.post("/sign-in", form).status_code == 403
    eve.close()


# ------------------------------------------------------------------------------------- plain HTTP, proxies


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "todoku.example"}, {"host": "192.168.1.4:8320"}, {"x-forwarded-for": "1.2.3.4"},
        {"x-forwarded-proto": "https"}, {"host": "todoku.example", "x-forwarded-proto": "https"},
    ],
)  # fmt: skip
def test_over_plain_http_there_is_no_form_only_a_sentence_about_tls(
    visitor: Visitor, box: App, headers: dict[str, str]
) -> None:
    create(box, "ada", "viewer")
    visitor.sign_in("ada")
    shown = visitor.get("/sign-in", **headers)
    assert shown.status_code == 403
    assert "HTTPS" in shown.text
    assert "password" not in shown.text.split("<main")[1].split("HTTPS")[1]
    assert 'method="post"' not in shown.text
    assert visitor.get("/account", **headers).status_code == 303, "not even with a cookie"
    form = {"csrf": "x", "user": "ada", "password": PASSWORD}
    assert visitor.post("/sign-in", form, **headers).status_code == 403


def test_behind_a_trusted_proxy_that_has_tls_people_sign_in(box: App, monkeypatch: pytest.MonkeyPatch) -> None:
    create(box, "ada", "viewer")
    monkeypatch.setenv("TODOKU_TRUSTED_PROXIES", "127.0.0.1")
    proxied = App(box.settings.database)
    with serving(proxied, entrance=SignInEntrance) as server:
        visitor = another(server)
        tls = {"host": "todoku.example", "x-forwarded-proto": "https", "x-forwarded-for": "9.9.9.9"}
        shown = visitor.get("/sign-in", **tls)
        assert shown.status_code == 200
        form = {"csrf": shown.text.split('name="csrf" value="')[1].split('"')[0], "user": "ada", "password": PASSWORD}
        assert visitor.post("/sign-in", form, **tls, origin="https://todoku.example").status_code == 303
        assert visitor.get("/account", **tls).status_code == 200
        plain = {**tls, "x-forwarded-proto": "https, http"}
        assert visitor.get("/sign-in", **plain).status_code == 403, "the last one is the proxy's own word"
        visitor.close()
    proxied.close()


# ---------------------------------------------------------------------------------------------- guessing


def test_guessing_is_slowed_down_for_the_guesser_and_not_for_the_user(visitor: Visitor, box: App) -> None:
    create(box, "ada", "viewer")
    statuses = [visitor.sign_in("ada", f"a wrong password {number}").status_code for number in range(7)]
    assert statuses[:5] == [401] * 5
    refused = visitor.sign_in("ada")
    assert refused.status_code == 429, "from here not even the right one"
    assert int(refused.headers["retry-after"]) >= 1
    assert "429" in box.telemetry.render().decode().split(metrics.AUTH_FAILURES.name, 1)[1]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_guesses_from_everywhere_do_not_lock_out_who_was_right_before(box: App) -> None:
    create(box, "ada", "viewer")
    gate = PasswordGate(box.store, clock=Clock())
    assert await gate.check("ada", PASSWORD, "home") is not None
    for number in range(password_gate.USER[1]):
        assert await gate.check("ada", "wrong", f"address {number}") is None
    with pytest.raises(Refused, match="too many"):
        await gate.check("ada", PASSWORD, "elsewhere")
    assert await gate.check("ada", PASSWORD, "home") is not None


async def test_a_guesser_behind_the_same_address_locks_out_nobody_who_was_right_there(box: App) -> None:
    """Decision 21: an office or a proxy is one address."""
    for name in ("ada", "bob"):
        create(box, name, "viewer")
    gate = PasswordGate(box.store, clock=Clock())
    assert await gate.check("ada", PASSWORD, "office") is not None
    for number in range(password_gate.ADDRESS[1]):
        assert await gate.check(f"user {number}", "wrong", "office") is None
    with pytest.raises(Refused):
        await gate.check("bob", PASSWORD, "office")
    assert await gate.check("ada", PASSWORD, "office") is not None
    assert await gate.check("bob", PASSWORD, "home") is not None


async def test_after_a_while_guessing_is_looked_at_again(box: App) -> None:
    create(box, "ada", "viewer")
    clock = Clock()
    gate = PasswordGate(box.store, clock=clock)
    for _ in range(password_gate.PAIR[1]):
        assert await gate.check("ada", "wrong", "home") is None
    with pytest.raises(Refused):
        await gate.check("ada", PASSWORD, "home")
    clock.now += 1 / password_gate.PAIR[0]
    assert await gate.check("ada", PASSWORD, "home") is not None


async def test_at_most_one_unknown_password_is_hashed_at_once_and_a_flood_is_refused(
    box: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most = 0, 0

    def verify(*_: object) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        running -= 1

    monkeypatch.setattr(password_gate, "verify_user", verify)
    gate = PasswordGate(box.store, clock=Clock())
    tries = [gate.check(f"user {number}", "wrong", f"address {number}") for number in range(100)]
    found = await asyncio.gather(*tries, return_exceptions=True)
    assert most == 1
    refused = [each for each in found if isinstance(each, Refused)]
    assert len(refused) == 100 - password_gate._MOST_WAITING


# --------------------------------------------------------------------------------------------- a browser


@needs_browser
def test_a_person_signs_in_changes_a_user_and_signs_out(browser: Browser, closed: Server, box: App) -> None:
    create(box, "root", "admin")
    with opened_page(browser, closed.url) as (page, complaints):
        complaints.expected.add("401")
        page.goto("/users")
        expect(page).to_have_title("Sign in · todoku")
        page.get_by_label("Name").fill("root")
        page.get_by_label("Password").fill("a wrong password")
        page.get_by_role("button", name="Sign in", exact=True).click()
        expect(page.get_by_role("alert")).to_have_text("the name or the password is wrong")
        page.get_by_label("Name").fill("root")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in", exact=True).click()
        page.goto("/users")
        page.locator("summary", has_text="New user").click()
        form = page.locator("form[action='/users']")
        form.get_by_label("Name").fill("<img src=x onerror=alert(1)>")
        form.get_by_label("Role").select_option("operator")
        form.get_by_label("Password").fill(PASSWORD)
        form.get_by_label("Why").fill("she starts today")
        form.get_by_role("button").click()
        expect(page.get_by_role("status").filter(has_text="can sign in now")).to_contain_text("<img src=x")
        row = page.get_by_role("row").filter(has_text="<img")
        row.locator("summary", has_text="Disable").click()
        disable = row.locator("form[action='/users/disabled']")
        disable.get_by_label("Why").fill("it was a joke")
        disable.get_by_role("button").click()
        expect(page.get_by_role("row").filter(has_text="<img")).to_contain_text("disabled")
        cookies = {cookie["name"]: cookie for cookie in page.context.cookies()}
        assert cookies[SESSION_COOKIE]["httpOnly"]
        assert cookies[SESSION_COOKIE]["secure"]
        page.get_by_role("link", name="root").click()
        page.get_by_role("button", name="Sign out", exact=True).click()
        expect(page).to_have_title("Sign in · todoku")
        page.goto("/users")
        expect(page).to_have_title("Sign in · todoku")
    acts = [(row.act.by, row.act.action, row.act.why) for row in box.store.audit.page(limit=2)]
    assert acts == [("root", "disable", "it was a joke"), ("root", "create as operator", "she starts today")]
