"""The dashboard inside another application: below a prefix, with its sign-in or the application's own."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from wsgiref.simple_server import WSGIRequestHandler, make_server

import httpx
import pytest
from fastapi import FastAPI
from flask import Flask
from playwright.sync_api import Browser, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount

from tests.support.serving import PLAIN
from tests.web.browser import needs_browser, opened_page
from tests.web.signing_in import PASSWORD, Visitor, create, quick_hashes
from todoku.app import App
from todoku.core.errors import InvalidSetting
from todoku.daemon.http_thread import HttpThread, listen, listening_url
from todoku.integrations.flask import dashboard
from todoku.web.cookies import SESSION_COOKIE
from todoku.web.site import PAGES
from todoku.web.viewer import Viewer

Make = Callable[..., httpx.Client]


def by_header(request: Request) -> Viewer | Response | str | None:
    """Who a request is from, as an application may know it."""
    match request.headers.get("x-person"):
        case None:
            return None
        case "guest":
            return PlainTextResponse("go to the login", 401)
        case "viewer" | "operator" | "admin" as role:
            return role
        case name:
            return Viewer.of_role(name, "admin" if name == "root" else "viewer")


async def by_header_later(request: Request) -> Viewer | Response | str | None:
    return by_header(request)


def starlette_app(box: App, auth: object) -> Starlette:
    return Starlette(routes=[Mount("/in/todoku", app=box.web(auth=auth))])  # type: ignore[arg-type]


def fastapi_app(box: App, auth: object) -> FastAPI:
    app = FastAPI()
    app.mount("/in/todoku", box.web(auth=auth))  # type: ignore[arg-type]
    return app


@pytest.fixture(params=[starlette_app, fastapi_app], ids=["starlette", "fastapi"])
def make(request: pytest.FixtureRequest, box: App) -> Iterator[Make]:
    with ExitStack() as stack:

        def make(auth: object = by_header) -> httpx.Client:
            url = stack.enter_context(mounted(request.param(box, auth)))
            return stack.enter_context(httpx.Client(base_url=url, timeout=60, trust_env=False, verify=PLAIN))

        yield make


@contextmanager
def mounted(app: object) -> Iterator[str]:
    """A real server of an application; its URL."""
    listening = listen("127.0.0.1", 0)
    thread = HttpThread(lambda: app, listening)  # type: ignore[arg-type, return-value]
    thread.start()
    try:
        yield listening_url(listening)
    finally:
        thread.stop()


def prefixed(text: str) -> list[str]:
    links = [part.split('"')[0] for part in re.split('href="|src="|action="', text)[1:]]
    assert links
    return [link for link in links if not link.startswith(("/in/todoku/", "#"))]


@pytest.mark.parametrize("auth", [by_header, by_header_later])
def test_the_application_says_who_it_is(make: Make, auth: object) -> None:
    client = make(auth)
    assert client.get("/in/todoku/account").status_code == 403
    assert client.get("/in/todoku/account", headers={"x-person": "guest"}).text == "go to the login"
    accept = {"accept": "application/json"}
    found = client.get("/in/todoku/account", headers={"x-person": "ana", **accept}).json()
    assert (found["name"], found["role"], found["has_session"]) == ("ana", "viewer", False)
    assert client.get("/in/todoku/account", headers={"x-person": "operator", **accept}).json()["role"] == "operator"
    assert client.get("/in/todoku/users", headers={"x-person": "ana"}).status_code == 403
    assert client.get("/in/todoku/sign-in", headers={"x-person": "ana"}).status_code == 404


def test_every_link_and_redirect_has_the_prefix(make: Make, box: App) -> None:
    client = make()
    root = {"x-person": "root"}
    box.route("**", to="warehouse")
    message = box.publish("order.created", {"a": 1}, tx=None)
    paths = [page.path for page in PAGES if page.method == "GET" and "{" not in page.path]
    for path in (*paths, "/deliveries/1", f"/messages/{message.id}"):
        shown = client.get(f"/in/todoku{path}", headers=root)
        assert shown.status_code == (422 if path == "/acts/new" else 200), (path, shown.text)
        assert path == "/suggestions" or not prefixed(shown.text), path
    text = client.get("/in/todoku/", headers=root).text
    style = next(part.split('"')[0] for part in text.split('href="')[1:] if ".css" in part)
    assert client.get(style).status_code == 200
    switched = client.get("/in/todoku/account?lang=ja", headers=root)
    assert (switched.status_code, switched.headers["location"]) == (303, "/in/todoku/account")


def test_acts_of_the_applications_people_need_the_token_of_their_own_page(make: Make, box: App) -> None:
    client = make()
    own = {"origin": str(client.base_url).rstrip("/")}

    def csrf(person: str) -> str:
        text = client.get("/in/todoku/users", headers={"x-person": person}).text
        return text.split('name="csrf" value="')[1].split('"')[0]

    form = {"name": "ada", "role": "viewer", "password": PASSWORD, "why": "a try"}
    path = "/in/todoku/users"
    assert client.post(path, data=form, headers={"x-person": "root", **own}).status_code == 403
    theirs = {**form, "csrf": csrf("admin")}
    assert client.post(path, data=theirs, headers={"x-person": "root", **own}).status_code == 403
    mine = {**form, "csrf": csrf("root")}
    assert client.post(path, data=mine, headers={"x-person": "root"}).status_code == 403, "no origin"
    assert client.post(path, data=mine, headers={"x-person": "ana", **own}).status_code == 403, "a viewer"
    done = client.post(path, data=mine, headers={"x-person": "root", **own})
    assert (done.status_code, done.headers["location"]) == (303, "/in/todoku/users")
    assert [row.act.by for row in box.store.audit.page(target="user:ada")] == ["root"]


def test_something_that_cannot_be_called_is_no_auth(box: App) -> None:
    with pytest.raises(InvalidSetting, match="auth"):
        box.web(auth="admin")  # type: ignore[arg-type]


def test_with_the_public_token_of_development_it_needs_auth(box: App, monkeypatch: pytest.MonkeyPatch) -> None:
    from todoku.core.scope import TOKEN

    monkeypatch.setenv("TODOKU_TOKEN", TOKEN)
    public = App(box.settings.database)
    with pytest.raises(InvalidSetting, match="development"):
        public.web()
    assert public.web(auth=by_header) is not None
    public.close()


# ------------------------------------------------------------------------- with its own sign-in, in a browser


@needs_browser
@pytest.mark.parametrize("app", [starlette_app, fastapi_app], ids=["starlette", "fastapi"])
def test_a_person_signs_in_below_the_prefix(browser: Browser, box: App, app: Callable[..., object]) -> None:
    create(box, "root", "admin")
    with quick_hashes(), mounted(app(box, None)) as url, opened_page(browser, url) as (page, _):
        page.goto("/in/todoku/users")
        page.get_by_label("Name").fill("root")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in", exact=True).click()
        expect(page).to_have_title("Users · todoku")
        expect(page).to_have_url(f"{url}/in/todoku/users")
        page.goto("/in/todoku/")
        expect(page.locator("#pulse")).to_have_text("live")
        page.get_by_role("link", name="root").click()
        page.get_by_role("button", name="Sign out", exact=True).click()
        expect(page).to_have_url(f"{url}/in/todoku/sign-in")


# ------------------------------------------------------------------------------------------------- Flask


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def wsgi(app: Flask) -> Iterator[str]:
    """A real WSGI server with one thread: a stream would block it."""
    server = make_server("127.0.0.1", 0, app, handler_class=Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def flask_app(box: App, auth: Callable[[], object] | None = None) -> Flask:
    app = Flask("shop")
    app.register_blueprint(dashboard(box, auth=auth), url_prefix="/in/todoku")
    return app


def test_flask_people_are_the_applications(box: App) -> None:
    from flask import request

    client = flask_app(box, lambda: request.headers.get("X-Person")).test_client()
    assert client.get("/in/todoku/account").status_code == 403
    shown = client.get("/in/todoku/account", headers={"X-Person": "operator"})
    assert shown.status_code == 200
    assert not prefixed(shown.text)
    assert client.get("/in/todoku/live", headers={"X-Person": "operator"}).status_code == 204
    assert client.get("/in/todoku/users", headers={"X-Person": "operator"}).status_code == 403
    form = {"name": "ada", "role": "viewer", "password": PASSWORD, "why": "a try"}
    text = client.get("/in/todoku/users", headers={"X-Person": "admin"}).text
    csrf = text.split('name="csrf" value="')[1].split('"')[0]
    headers = {"X-Person": "admin", "Origin": "http://localhost"}
    assert client.post("/in/todoku/users", data=form, headers=headers).status_code == 403
    done = client.post("/in/todoku/users", data={**form, "csrf": csrf}, headers=headers)
    assert (done.status_code, done.headers["location"]) == (303, "/in/todoku/users")
    assert client.post("/in/todoku/users", data="x" * (5 << 20), headers=headers).status_code == 413


@needs_browser
def test_a_person_signs_in_to_flask_and_the_page_polls(browser: Browser, box: App) -> None:
    create(box, "ada", "viewer")
    with quick_hashes(), wsgi(flask_app(box)) as url, opened_page(browser, url) as (page, complaints):
        complaints.expected.add("/live")  # the browser says that there are no events
        page.goto("/in/todoku/")
        page.get_by_label("Name").fill("ada")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in", exact=True).click()
        expect(page).to_have_title("Overview · todoku")
        assert {cookie["name"] for cookie in page.context.cookies()} >= {SESSION_COOKIE}
        # There is no stream that could say so: the page has fetched itself.
        expect(page.locator("#pulse")).to_have_text("live", timeout=60_000)


def test_flask_with_its_own_sign_in_refuses_plain_http(box: App) -> None:
    client = flask_app(box).test_client()
    shown = client.get("/in/todoku/sign-in", headers={"Host": "shop.example"})
    assert shown.status_code == 403
    assert "HTTPS" in shown.text
    assert client.get("/in/todoku/account").headers["location"] == "/in/todoku/sign-in?next=%2Faccount"


def test_the_visitor_of_other_tests_signs_in_to_flask(box: App) -> None:
    create(box, "ada", "viewer")
    with quick_hashes(), wsgi(flask_app(box)) as url:
        visitor = Visitor(url, prefix="/in/todoku")
        assert visitor.sign_in("ada").headers["location"] == "/in/todoku/"
        assert visitor.get("/account").status_code == 200
        assert isinstance(visitor.get("/live"), httpx.Response)
        visitor.close()
