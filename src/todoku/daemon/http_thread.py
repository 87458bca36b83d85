"""HTTP in a thread of its own, on a socket that is bound before anything else starts."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from todoku.core.errors import CannotStart
from todoku.engine.observability.log import Log

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from todoku.api.ingest_fast_path import Served

_THREADS: Final = 32
"""Requests that wait for the database at the same time; more wait for a thread, and health for none."""


def bound(host: str, port: int) -> socket.socket:
    """A listening socket; CannotStart if the port is taken or the host is not ours."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CannotStart(f"{host!r} is no address here: {error.strerror}", hint="pass --host 127.0.0.1") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise CannotStart(
            f"port {port} of {host} cannot be used: {(error.strerror or str(error)).lower()}",
            hint="stop what uses it, or take another with --port or TODOKU_PORT",
        ) from error
    return listening


def url_of(listening: socket.socket) -> str:
    """The address for a browser."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_local(listening: socket.socket) -> bool:
    """Whether only this machine can ask."""
    return ip_address(listening.getsockname()[0]).is_loopback


class HttpThread:
    """A server of one application, made by `make`. Serves until it is stopped, also while draining."""

    def __init__(self, make: Callable[[], ASGIApp | Served], listening: socket.socket) -> None:
        try:
            import uvicorn  # noqa: PLC0415 - the extra `server`

            from todoku.api.ingest_fast_path import Served, protocol_options  # noqa: PLC0415
            from todoku.api.uvicorn_protocol import is_tested  # noqa: PLC0415

            made = make()
            served = made if isinstance(made, Served) else Served(made)
        except ImportError as error:
            raise CannotStart(
                f"HTTP needs {error.name}, which is not installed",
                hint='pip install "todoku[server]", or todoku run --no-http',
            ) from error
        if not is_tested():
            Log(part="http", library="uvicorn", version=uvicorn.__version__).warning("LIBRARY_NOT_TESTED")
        # No logging of its own, no lifespan, and no signal handlers: those are only set in the main thread.
        config = uvicorn.Config(
            served.app, log_config=None, access_log=False, lifespan="off", ws="none",
            server_header=False, proxy_headers=False, timeout_graceful_shutdown=1,
            timeout_keep_alive=served.bounds.idle,  # type: ignore[arg-type]  # it is handed to call_later
            backlog=served.bounds.backlog, **protocol_options(served),
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._loop_factory = config.get_loop_factory()
        self._listening = listening
        self._thread = threading.Thread(target=self._run, name="todoku-http", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        gc.freeze()  # what is loaded stays: a full collection stops every thread, and need not walk it
        self._thread.start()

    def stop(self) -> None:
        """Stop answering; waits a moment for answers in flight."""
        self._server.should_exit = True
        self._thread.join(3.0)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._loop_factory) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="todoku-api")
        asyncio.get_running_loop().set_default_executor(threads)
        await self._server.serve(sockets=[self._listening])
