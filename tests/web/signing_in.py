"""A person at a browser, without one: cookies, forms and the headers that a browser sends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookies import Morsel, SimpleCookie

import httpx
from argon2 import PasswordHasher

from tests.support.serving import PLAIN, SOMEBODY
from todoku.app import App
from todoku.engine.sign_in import passwords, users
from todoku.web.page import WebPage

PASSWORD = "correct horse battery staple"
NONE = "00000000-0000-0000-0000-000000000000"


@contextmanager
def quick_hashes() -> Iterator[None]:
    """A hash that takes a millisecond: what is tested is not argon2."""
    before, quick = passwords._hasher, PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    passwords._hasher = lambda: quick  # type: ignore[assignment]
    passwords._dummy.cache_clear()
    try:
        yield
    finally:
        passwords._hasher = before
        passwords._dummy.cache_clear()


class Visitor:
    """Sends requests with the cookies it was given, whatever their attributes say, and keeps these for the test."""

    def __init__(self, url: str, *, prefix: str = "") -> None:
        self.url, self.prefix = url, prefix
        self.cookies: dict[str, str] = {}
        self.given: dict[str, Morsel[str]] = {}
        self._client = httpx.Client(base_url=url, timeout=60, trust_env=False, verify=PLAIN)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self._send("GET", path, headers)

    def post(self, path: str, form: dict[str, str], **headers: str) -> httpx.Response:
        """Sends a form as a page of the same site does; a header that is empty is left out."""
        return self._send("POST", path, {"origin": self.url, "sec-fetch-site": "same-origin", **headers}, form)

    def csrf(self, path: str) -> str:
        """The token of the forms of a page."""
        answer = self.get(path)
        found = re.search(r'name="csrf" value="([^"]+)"', answer.text)
        assert found is not None, (answer.status_code, answer.text)
        return found[1]

    def sign_in(self, user: str, password: str = PASSWORD, **form: str) -> httpx.Response:
        return self.post("/sign-in", {"csrf": self.csrf("/sign-in"), "user": user, "password": password, **form})

    def sign_in_with(self, token: str) -> httpx.Response:
        return self.post("/sign-in", {"csrf": self.csrf("/sign-in"), "token": token})

    def close(self) -> None:
        self._client.close()

    def _send(
        self, method: str, path: str, headers: dict[str, str], form: dict[str, str] | None = None
    ) -> httpx.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items() if value}
        if self.cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        answer = self._client.request(method, self.prefix + path, headers=sent, data=form)
        for line in answer.headers.get_list("set-cookie"):
            for name, morsel in SimpleCookie(line).items():
                self.given[name] = morsel
                if morsel["max-age"] == "0":
                    self.cookies.pop(name, None)
                else:
                    self.cookies[name] = morsel.value
        self._client.cookies.clear()
        return answer


def path_of(page: WebPage) -> str:
    """A path that the page serves."""
    return re.sub(r"\{\w+(:\w+)?\}", lambda found: "1" if found[1] == ":int" else NONE, page.path)


def create(box: App, name: str, role: str, password: str = PASSWORD) -> None:
    """Creates a user."""
    with quick_hashes():
        users.create_user(box.store, SOMEBODY, name=name, password=password, role_name=role)
