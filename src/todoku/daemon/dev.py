"""`todoku dev`: the HTTP API on this machine, with the public credentials of development and a test receiver."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec

from todoku.core.errors import CannotStart
from todoku.core.scope import KEYS, PORT, TOKEN
from todoku.daemon.app_loader import find_app_name, load_app
from todoku.daemon.http_thread import HttpThread, listen, listening_url
from todoku.daemon.start import Daemon, DaemonOptions, load_named_app, refuse_without_processes
from todoku.engine.diagnostics.summary import without_password

if TYPE_CHECKING:
    from starlette.types import ASGIApp


class DevOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `todoku dev` beside those of every daemon."""

    rewrite: tuple[str, ...] = ()
    """`https://host=http://127.0.0.1:3000`: requests for the first origin are sent to the second."""
    receiver_port: int | None = None
    """None: the port after the server's, or any free one."""


def dev(options: DaemonOptions, dev_options: DevOptions, say: Callable[..., None]) -> int:
    """Serves, sends and receives until stopped; returns the exit code.

    Uses the database of the App; without one, a temporary database. CannotStart unless it listens on a loopback
    address, because the credentials are public.
    """
    refuse_without_processes("dev")
    options = _with_local_address(options)
    with ExitStack() as stack:
        _export_credentials(dev_options)
        if options.database is None and find_app_name(options.app) is None:
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="todoku-dev-", ignore_cleanup_errors=True))
            options = msgspec.structs.replace(options, database=f"sqlite:///{home}/todoku.db")
        name = _app_name(options)
        daemon = Daemon(options, _NAME, load_app(_NAME), migrates=True)
        listening = _listen_receiver(dev_options, daemon.address)
        stack.callback(listening.close)
        receiver = HttpThread(_receiver, listening)
        receiver.start()
        stack.callback(receiver.stop)
        daemon.when_opened(lambda: say(*greeting(daemon, name, dev_options, listening_url(listening))))
        return daemon.run()


_NAME = "todoku.daemon.dev_app:box"
"""The App that both processes import. Importing it reads the settings: only after `_export_credentials`."""


def _with_local_address(options: DaemonOptions) -> DaemonOptions:
    port = options.port if options.port is not None else int(os.environ.get("TODOKU_PORT") or PORT)
    host = options.host or "127.0.0.1"
    return msgspec.structs.replace(options, host=host, port=port, is_open=True, serve_workers=1)


def _export_credentials(dev_options: DevOptions) -> None:
    """Overrides settings in the environment, for this process and the worker process."""
    os.environ["TODOKU_TOKEN"] = TOKEN
    os.environ["TODOKU_SIGNING_KEYS"] = f"{KEYS.current},{KEYS.next}"
    os.environ["TODOKU_HTTP_LOOPBACK"] = "true"
    if dev_options.rewrite:
        os.environ["TODOKU_HTTP_REWRITE"] = ",".join(dev_options.rewrite)
    for name in ("TODOKU_TOKEN_FILE", "TODOKU_SIGNING_KEYS_FILE"):  # they would take precedence
        os.environ.pop(name, None)


def _app_name(options: DaemonOptions) -> str | None:
    """The name of the user's App, if there is one. Loading it here reports its errors under its own name."""
    found = load_named_app(options)
    if found is None:
        return None
    os.environ["TODOKU_APP"] = found[0]
    return found[0]


def _listen_receiver(dev_options: DevOptions, address: str) -> socket.socket:
    if dev_options.receiver_port is not None:
        return listen("127.0.0.1", dev_options.receiver_port)
    try:
        return listen("127.0.0.1", min(int(address.rpartition(":")[2]) + 1, 65_535))
    except CannotStart:
        return listen("127.0.0.1", 0)


def _receiver() -> ASGIApp:
    from todoku.api.receiver import Receiver  # noqa: PLC0415
    from todoku.api.request_frame import RequestFrame  # noqa: PLC0415 - the extra `server`

    return RequestFrame(Receiver((KEYS.current, KEYS.next)))


def greeting(daemon: Daemon, name: str | None, dev_options: DevOptions, receiver: str) -> list[str]:
    """The lines printed once it runs: first the environment of a client, to be copied."""
    rewrites = [f"  rewrite     {pair.replace('=', ' is sent to ', 1)}" for pair in dev_options.rewrite]
    return [
        f"todoku dev is running on {daemon.address}",
        f"  export QSTASH_URL={daemon.address}",
        f"  export QSTASH_TOKEN={TOKEN}",
        f"  export QSTASH_CURRENT_SIGNING_KEY={KEYS.current}",
        f"  export QSTASH_NEXT_SIGNING_KEY={KEYS.next}",
        f"  receiver    {receiver}/200 /404 /489 /500 /slow?ms=3000 /flaky?times=2 …; GET / lists all",
        *rewrites,
        f"  database    {without_password(daemon.box.settings.database)}",
        f"  running     {name or 'no App; name yours with --app module:attribute'}",
        f"  stop        Ctrl-C, or kill -TERM {os.getpid()}",
    ]
