"""Serves HTTP in a thread, on a socket that is bound before anything else starts."""

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

    from todoku.api.ingest_fast_path import ServedApp

_THREADS: Final = 32
"""Requests that can wait for the database at once. More wait for a thread; health checks need none."""


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket. CannotStart: the port is taken, or the host is not an address of this machine."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CannotStart(
            f"{host!r} is not an address of this machine: {error.strerror}", hint="pass --host 127.0.0.1"
        ) from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise CannotStart(
            f"cannot listen on port {port} of {host}: {(error.strerror or str(error)).lower()}",
            hint="stop the program that uses it, or choose another port with --port or TODOKU_PORT",
        ) from error
    return listening


def listening_url(listening: socket.socket) -> str:
    """The URL of the socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_local(listening: socket.socket) -> bool:
    """Whether only programs on this machine can connect."""
    return ip_address(listening.getsockname()[0]).is_loopback


class HttpThread:
    """Serves the application that `create` returns until stopped, also while the daemon drains."""

    def __init__(self, create: Callable[[], ASGIApp | ServedApp], listening: socket.socket) -> None:
        try:
            import uvicorn  # noqa: PLC0415 - the extra `server`

            from todoku.api.ingest_fast_path import ServedApp, protocol_options  # noqa: PLC0415
            from todoku.api.uvicorn_protocol import is_tested  # noqa: PLC0415

            application = create()
            served = application if isinstance(application, ServedApp) else ServedApp(application)
        except ImportError as error:
            raise CannotStart(
                f"HTTP needs {error.name}, which is not installed",
                hint='run pip install "todoku[server]", or use todoku run --no-http',
            ) from error
        if not is_tested():
            Log(part="http", library="uvicorn", version=uvicorn.__version__).warning("LIBRARY_NOT_TESTED")
        # uvicorn sets up no logging and no lifespan; it sets signal handlers only in the main thread.
        config = uvicorn.Config(
            served.app, log_config=None, access_log=False, lifespan="off", ws="none",
            server_header=False, proxy_headers=False, timeout_graceful_shutdown=1,
            timeout_keep_alive=served.bounds.idle,  # type: ignore[arg-type]  # passed to call_later, which takes a float
            backlog=served.bounds.backlog, **protocol_options(served),
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._loop_factory = config.get_loop_factory()
        self._listening = listening
        self._thread = threading.Thread(target=self._run, name="todoku-http", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        gc.freeze()  # a full collection stops every thread; it need not visit what is loaded for good
        self._thread.start()

    def stop(self) -> None:
        """Stops serving. Waits up to three seconds for running requests."""
        self._server.should_exit = True
        self._thread.join(3.0)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._loop_factory) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="todoku-api")
        asyncio.get_running_loop().set_default_executor(threads)
        await self._server.serve(sockets=[self._listening])
