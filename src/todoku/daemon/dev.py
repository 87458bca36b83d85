"""`todoku dev`: the whole of HTTP on this machine, with credentials that clients know and a receiver to send to."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec

from todoku.core.development_credentials import KEYS, PORT, TOKEN
from todoku.core.errors import CannotStart
from todoku.daemon.app_loader import load_app, named_app
from todoku.daemon.http_thread import HttpThread, bound, url_of
from todoku.daemon.start import Daemon, DaemonOptions, checked_app
from todoku.engine.diagnostics.summary import without_password

if TYPE_CHECKING:
    from starlette.types import ASGIApp


class Dev(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asked for, beside what it asks of every daemon."""

    rewrite: tuple[str, ...] = ()
    """`https://host=http://127.0.0.1:3000`: what is for the first is sent to the second."""
    receiver_port: int | None = None
    """None: the port after the server's, or any free one."""


def dev(wanted: DaemonOptions, asked: Dev, say: Callable[..., None]) -> int:
    """Serve, send and receive until stopped; returns the exit code.

    With an App its own database is used, else one that is gone afterwards. CannotStart unless it is for this machine
    alone: the credentials are public.
    """
    wanted = _for_this_machine(wanted)
    with ExitStack() as stack:
        _hand_down(asked)
        if wanted.database is None and named_app(wanted.app) is None:
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="todoku-dev-", ignore_cleanup_errors=True))
            wanted = msgspec.structs.replace(wanted, database=f"sqlite:///{home}/todoku.db")
        name = _checked_name(wanted)
        daemon = Daemon(wanted, _NAME, load_app(_NAME), migrates=True)
        listening = _receiving(asked, daemon.address)
        stack.callback(listening.close)
        receiver = HttpThread(_receiver, listening)
        receiver.start()
        stack.callback(receiver.stop)
        daemon.when_opened(lambda: say(*greeting(daemon, name, asked, url_of(listening))))
        return daemon.run()


_NAME = "todoku.daemon.dev_app:box"
"""The App as both processes import it: importing it reads the settings, so not before they are handed down."""


def _for_this_machine(wanted: DaemonOptions) -> DaemonOptions:
    port = wanted.port if wanted.port is not None else int(os.environ.get("TODOKU_PORT") or PORT)
    return msgspec.structs.replace(wanted, host=wanted.host or "127.0.0.1", port=port)


def _hand_down(asked: Dev) -> None:
    """Settings for the App, here and in the worker process, whatever else the environment says."""
    os.environ["TODOKU_TOKEN"] = TOKEN
    os.environ["TODOKU_SIGNING_KEYS"] = f"{KEYS.current},{KEYS.next}"
    os.environ["TODOKU_HTTP_LOOPBACK"] = "true"
    if asked.rewrite:
        os.environ["TODOKU_HTTP_REWRITE"] = ",".join(asked.rewrite)
    for name in ("TODOKU_TOKEN_FILE", "TODOKU_SIGNING_KEYS_FILE"):  # they would come before
        os.environ.pop(name, None)


def _checked_name(wanted: DaemonOptions) -> str | None:
    """The name of the App that is run, if there is one. What is wrong with it is said about it, not about us."""
    found = checked_app(wanted)
    if found is None:
        return None
    os.environ["TODOKU_APP"] = found[0]
    return found[0]


def _receiving(asked: Dev, address: str) -> socket.socket:
    if asked.receiver_port is not None:
        return bound("127.0.0.1", asked.receiver_port)
    try:
        return bound("127.0.0.1", min(int(address.rpartition(":")[2]) + 1, 65_535))
    except CannotStart:
        return bound("127.0.0.1", 0)


def _receiver() -> ASGIApp:
    from todoku.api.receiver import Receiver  # noqa: PLC0415
    from todoku.api.request_frame import Framed  # noqa: PLC0415 - the extra `server`

    return Framed(Receiver((KEYS.current, KEYS.next)))


def greeting(daemon: Daemon, name: str | None, asked: Dev, receiver: str) -> list[str]:
    """What it says once it runs: first what a client needs, to be copied."""
    rewrites = [f"  instead     {pair.replace('=', ' is sent to ', 1)}" for pair in asked.rewrite]
    return [
        f"todoku dev is running on {daemon.address}",
        f"  export QSTASH_URL={daemon.address}",
        f"  export QSTASH_TOKEN={TOKEN}",
        f"  export QSTASH_CURRENT_SIGNING_KEY={KEYS.current}",
        f"  export QSTASH_NEXT_SIGNING_KEY={KEYS.next}",
        f"  receiver    {receiver}/200 /404 /489 /500 /slow?ms=3000 /flaky?times=2 …; GET / says all of them",
        *rewrites,
        f"  database    {without_password(daemon.box.settings.database)}",
        f"  running     {name or 'no App of yours: --app module:attribute'}",
        f"  stop        Ctrl-C, or kill -TERM {os.getpid()}",
    ]
