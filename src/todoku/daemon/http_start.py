"""What the daemon serves over HTTP, and when it refuses to."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from todoku.app import App
from todoku.core.errors import CannotStart
from todoku.core.scope import is_public
from todoku.core.settings import Settings
from todoku.daemon.health_view import HealthView
from todoku.daemon.http_thread import is_local

if TYPE_CHECKING:
    from todoku.api.auth import GateCounts, GuardedRoute
    from todoku.api.ingest_fast_path import ServedApp
    from todoku.api.request_context import RequestContext


def refuse_public_credentials(settings: Settings, listening: socket.socket) -> None:
    """Raises CannotStart if the token or a signing key is public and other machines can reach the server."""
    if is_public(settings.token, settings.signing_keys) and not is_local(listening):
        listening.close()
        raise CannotStart(
            "this server would be reachable by other machines with the public credentials of development",
            hint="listen on 127.0.0.1, or set your own TODOKU_TOKEN and TODOKU_SIGNING_KEYS",
        )


def refuse_open(listening: socket.socket) -> None:
    """Raises CannotStart if other machines can reach a server whose dashboard asks no one to sign in."""
    if not is_local(listening):
        listening.close()
        raise CannotStart(
            "--open serves the dashboard without sign-in, and other machines could reach it",
            hint="listen on 127.0.0.1, or leave out --open and sign in with a token or a user",
        )


def refuse_serving_together(settings: Settings, number: int, *, is_sqlite: bool) -> None:
    """Raises CannotStart if several processes cannot serve HTTP here."""
    if is_sqlite:
        raise CannotStart(
            f"{number} processes cannot serve HTTP on SQLite: each would have a writer of its own, and they would wait "
            "for each other's lock instead of sharing commits",
            hint="serve with one (--serve-workers 1), or move to PostgreSQL: docs/moving.md",
        )
    if is_public(settings.token, settings.signing_keys):
        raise CannotStart(
            f"{number} processes do not serve HTTP with the public credentials of development",
            hint="leave out --serve-workers, or set your own TODOKU_TOKEN and TODOKU_SIGNING_KEYS",
        )
    from todoku.api.uvicorn_protocol import TESTED, is_tested  # noqa: PLC0415 - the extra `server`

    if not is_tested():
        lowest, below = (".".join(map(str, version)) for version in (TESTED.lowest, TESTED.below))
        raise CannotStart(
            f"{number} processes cannot serve HTTP with this version of uvicorn",
            hint=f'run pip install "uvicorn>={lowest},<{below}", or leave out --serve-workers',
        )


def create_rates() -> int:
    """Creates the memory in which all serving processes count requests. Returns its descriptor."""
    from todoku.api.shared_levels import create_levels  # noqa: PLC0415 - not on Windows

    return create_levels()


def create_http_app(
    box: App, watched: HealthView, *, local: bool, is_open: bool = False, rates: int | None = None
) -> ServedApp:
    """Creates everything that the daemon serves. Imported late, because it needs the extra `server`.

    `is_open`: the dashboard needs no sign-in. `rates`: the memory in which several serving processes count.
    """
    from todoku.api.auth import COUNTS_APART  # noqa: PLC0415
    from todoku.api.server import server_app  # noqa: PLC0415
    from todoku.web.entrance import OpenEntrance  # noqa: PLC0415
    from todoku.web.sign_in import SignInEntrance  # noqa: PLC0415
    from todoku.web.site import web_routes  # noqa: PLC0415

    def routes(context: RequestContext) -> list[GuardedRoute]:
        read_only = context.settings.web_read_only
        return web_routes(
            context, OpenEntrance(context.gate, read_only=read_only) if is_open else SignInEntrance(context)
        )

    counts = COUNTS_APART if rates is None else shared_counts(rates)
    return server_app(box, watched, local=local, more=routes, counts=counts)


def shared_counts(rates: int) -> GateCounts:
    """Returns where a gate counts together with those of the other serving processes."""
    from todoku.api.auth import GateCounts  # noqa: PLC0415 - the extra `server`
    from todoku.api.shared_levels import SharedLevels  # noqa: PLC0415

    return GateCounts(SharedLevels(rates, "requests"), SharedLevels(rates, "wrong"))
