"""The App of a Django project, in the database that Django uses."""

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
from todoku.integrations.program import wrap_call

_DEFAULTS: Final = {
    "DATABASE": "default", "SCHEMA": None, "REQUIRE_TX": False, "JOBS": "jobs",
    "OPERATOR_PERMISSION": "todoku.change_delivery", "ADMIN_PERMISSION": "todoku.delete_delivery",
}  # fmt: skip
_NOT_LIBPQ: Final = frozenset({
    "assume_role", "client_encoding", "context", "cursor_factory", "isolation_level", "pool", "prepare_threshold",
    "server_side_binding",
})  # fmt: skip


def option(name: str) -> Any:
    """The value of one key of the setting TODOKU, or its default."""
    given: Mapping[str, Any] = getattr(settings, "TODOKU", {})
    if unknown := given.keys() - _DEFAULTS.keys():
        hint = f"its keys are {', '.join(_DEFAULTS)}"
        raise InvalidSetting(f"TODOKU has no key {', '.join(sorted(unknown))}", hint=hint)
    return given.get(name, _DEFAULTS[name])


class DjangoApp(App):
    """An App in a Django project. Before and after each handler, stale connections are closed, as around a view."""

    def __init__(self) -> None:
        super().__init__(current_url(), schema=option("SCHEMA"), require_tx=option("REQUIRE_TX"))
        self.registry.wrap(_close_stale_connections)
        self.registry.tidy.append(close_old_connections)

    @property
    def alias(self) -> str:
        """The alias in DATABASES of its database."""
        return str(option("DATABASE"))

    @property
    def connection(self) -> Any:
        """Django's own connection to that database, in this thread: `tx=box.connection`."""
        return connections[self.alias]

    def follow(self) -> None:
        """Connects to the database that Django uses now: a test runner switches to another one without notice."""
        if (url := current_url()) != self.settings.database:
            self.connect(url, schema=self.settings.schema)

    def leave(self) -> None:
        """Closes every connection; the next call opens one."""
        self.connect(self.settings.database, schema=self.settings.schema)


def get_box() -> DjangoApp:
    """Returns the App of this project; sets up Django if necessary."""
    # A worker process calls this first; its setup imports jobs modules, which call it again.
    if not (apps.ready or apps.loading):
        django.setup()
    return _create_box()


@cache
def _create_box() -> DjangoApp:
    return DjangoApp()


def current_url() -> str:
    """The URL of the database that Django uses now. InvalidSetting: todoku cannot use it."""
    alias = option("DATABASE")
    if alias not in connections.settings:
        raise InvalidSetting(f"TODOKU names the database {alias!r}", hint="name one of DATABASES")
    given = connections[alias].settings_dict
    match connections[alias].vendor:
        case "sqlite":
            return _sqlite(str(given["NAME"]), alias)
        case "postgresql":
            return postgresql_url(given)
        case vendor:
            raise InvalidSetting(f"todoku does not support {vendor}", hint="use SQLite or PostgreSQL")


def _sqlite(name: str, alias: str) -> str:
    if name == ":memory:" or "mode=memory" in name:
        raise InvalidSetting(
            f"the database {alias!r} is in memory, where workers cannot read it",
            hint=f'for tests, set DATABASES["{alias}"]["TEST"] = {{"NAME": "test.sqlite3"}}',
        )
    return f"sqlite:///{name}"


def postgresql_url(given: Mapping[str, Any]) -> str:
    """The URL of one entry of DATABASES."""
    user = quote(str(given.get("USER") or ""), safe="")
    if given.get("PASSWORD"):
        user += f":{quote(str(given['PASSWORD']), safe='')}"
    host, port = str(given.get("HOST") or ""), str(given.get("PORT") or "")
    parameters = {
        name: value
        for name, value in given.get("OPTIONS", {}).items()
        if name not in _NOT_LIBPQ and isinstance(value, str | int)
    }
    if host.startswith("/"):  # the directory of a socket cannot stand in the host part of a URL
        parameters |= {"host": host} | ({"port": port} if port else {})
        address = ""
    else:
        address = f"{host}:{port}" if port else host
    name = quote(str(given.get("NAME") or ""), safe="")
    return f"postgresql://{user}{'@' if user else ''}{address}/{name}{'?' if parameters else ''}{urlencode(parameters)}"


def _close_stale_connections(target: Target) -> Target:
    """Wraps a handler as Django wraps a request: closes connections that are too old or broken."""
    return wrap_call(target, _wrap_sync, _wrap_async)


def _wrap_sync(call: Callable[[Context], Any]) -> Callable[[Context], Any]:
    def wrapped(context: Context) -> Any:
        close_old_connections()
        try:
            return call(context)
        finally:
            close_old_connections()

    return wrapped


def _wrap_async(call: Callable[[Context], Any]) -> Callable[[Context], Any]:
    async def wrapped(context: Context) -> Any:
        await sync_to_async(close_old_connections)()
        try:
            return await call(context)
        finally:
            await sync_to_async(close_old_connections)()

    return wrapped
