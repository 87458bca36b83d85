"""The App of a Django project: in the project's own database, wherever Django says that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import quote, urlencode

import django
from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.db import close_old_connections, connections

from todoku.app import App
from todoku.core.errors import InvalidSetting
from todoku.engine.context import Context
from todoku.engine.registry import Target
from todoku.integrations.around import with_call

_KNOWN: Final = {"DATABASE": "default", "SCHEMA": None, "REQUIRE_TX": False, "JOBS": "jobs"}
_NOT_LIBPQ: Final = frozenset({
    "assume_role", "client_encoding", "context", "cursor_factory", "isolation_level", "pool", "prepare_threshold",
    "server_side_binding",
})  # fmt: skip


def option(name: str) -> Any:
    """One key of the setting TODOKU, or its default."""
    given: Mapping[str, Any] = getattr(settings, "TODOKU", {})
    if unknown := given.keys() - _KNOWN.keys():
        raise InvalidSetting(f"TODOKU has no key {', '.join(sorted(unknown))}", hint=f"known: {', '.join(_KNOWN)}")
    return given.get(name, _KNOWN[name])


class DjangoApp(App):
    """An App in a Django project. Handlers find Django's connections as a view does: none that has gone stale."""

    def __init__(self) -> None:
        super().__init__(current_url(), schema=option("SCHEMA"), require_tx=option("REQUIRE_TX"))
        self.registry.wrap(_as_in_a_request)

    @property
    def alias(self) -> str:
        """Which of DATABASES it lives in."""
        return str(option("DATABASE"))

    @property
    def connection(self) -> Any:
        """Django's own connection to that database, in this thread: `tx=box.connection`."""
        return connections[self.alias]

    def follow(self) -> None:
        """Go where Django is now: a test runner makes databases of its own, and does not say so beforehand."""
        if (url := current_url()) != self.settings.database:
            self.connect(url, schema=self.settings.schema)

    def leave(self) -> None:
        """Give back every connection; the next call opens one."""
        self.connect(self.settings.database, schema=self.settings.schema)


def the_box() -> DjangoApp:
    """The one App of this project."""
    if not (apps.ready or apps.loading):  # a worker process comes here first, and jobs ask for the App meanwhile
        django.setup()
    return _made()


@cache
def _made() -> DjangoApp:
    return DjangoApp()


def current_url() -> str:
    """The URL of the database that Django uses now; InvalidSetting if todoku cannot live there."""
    alias = option("DATABASE")
    if alias not in connections.settings:
        raise InvalidSetting(f"TODOKU names the database {alias!r}", hint="it must be one of DATABASES")
    given = connections[alias].settings_dict
    match connections[alias].vendor:
        case "sqlite":
            return _sqlite(str(given["NAME"]), alias)
        case "postgresql":
            return postgresql_url(given)
        case vendor:
            raise InvalidSetting(f"todoku cannot live in {vendor}", hint="use SQLite or PostgreSQL")


def _sqlite(name: str, alias: str) -> str:
    if name == ":memory:" or "mode=memory" in name:
        raise InvalidSetting(
            f"the database {alias!r} is in memory, where no worker can see it",
            hint=f'for tests, set DATABASES["{alias}"]["TEST"] = {{"NAME": "test.sqlite3"}}',
        )
    return f"sqlite:///{name}"


def postgresql_url(given: Mapping[str, Any]) -> str:
    """What one of DATABASES says, as a URL."""
    who = quote(str(given.get("USER") or ""), safe="")
    if given.get("PASSWORD"):
        who += f":{quote(str(given['PASSWORD']), safe='')}"
    host, port = str(given.get("HOST") or ""), str(given.get("PORT") or "")
    more = {
        name: value
        for name, value in given.get("OPTIONS", {}).items()
        if name not in _NOT_LIBPQ and isinstance(value, str | int)
    }
    if host.startswith("/"):  # a socket's directory has no place in front of the path
        more |= {"host": host} | ({"port": port} if port else {})
        where = ""
    else:
        where = f"{host}:{port}" if port else host
    name = quote(str(given.get("NAME") or ""), safe="")
    return f"postgresql://{who}{'@' if who else ''}{where}/{name}{'?' if more else ''}{urlencode(more)}"


def _as_in_a_request(target: Target) -> Target:
    """Puts around a handler what Django puts around a request: no connection that is too old, or broken."""
    return with_call(target, _around, _around_async)


def _around(call: Callable[[Context], Any]) -> Callable[[Context], Any]:
    def called(context: Context) -> Any:
        close_old_connections()
        try:
            return call(context)
        finally:
            close_old_connections()

    return called


def _around_async(call: Callable[[Context], Any]) -> Callable[[Context], Any]:
    async def called(context: Context) -> Any:
        await sync_to_async(close_old_connections)()
        try:
            return await call(context)
        finally:
            await sync_to_async(close_old_connections)()

    return called
