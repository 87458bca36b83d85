"""Serves HTTP in a thread, on a socket that is bound before anything else starts."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

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
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise CannotStart(
            f"{host!r} is not an address of this machine: {error.strerror}", hint="pass --host 127.0.0.1"
        ) from error
    return _listen_at(family, address, host)


def _listen_at(family: int, address: Any, host: str, *, shared: bool = False) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise CannotStart(
            f"cannot listen on port {address[1]} of {host}: {(error.strerror or str(error)).lower()}",
            hint="stop the program that uses it, or choose another port with --port or TODOKU_PORT",
        ) from error
    return listening


def listen_for(host: str, port: int, number: int) -> list[socket.socket]:
    """Returns so many listening sockets of one port, one for each serving process. CannotStart: as `listen`.

    On Linux the kernel spreads connections over sockets with SO_REUSEPORT. Elsewhere that option has another meaning or
    does not exist, and all have the same socket: the process that is the first to accept gets the connection.
    """
    first = listen(host, port)  # without the option, so that a port that another program shares counts as taken
    if number == 1 or sys.platform != "linux":
        return [first, *(first.dup() for _ in range(number - 1))]
    address = first.getsockname()
    first.close()
    return [_listen_at(first.family, address, host, shared=True) for _ in range(number)]


def listening_url(listening: socket.socket) -> str:
    """The URL of the socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_local(listening: socket.socket) -> bool:
    """Whether only programs on this machine can connect."""
    return ip_address(listening.getsockname()[0]).is_loopback


class HttpThread:
    """Serves the application that `create` returns until stopped, also while the daemon drains.

    `options` chooses the HTTP protocol; without it, `protocol_options`. `grace`: seconds that running requests have at
    its end.
    """

    def __init__(
        self,
        create: Callable[[], ASGIApp | ServedApp],
        listening: socket.socket,
        options: Callable[[ServedApp], dict[str, Any]] | None = None,
        *,
        grace: int = 1,
    ) -> None:
        try:
            import uvicorn  # noqa: PLC0415 - the extra `server`

            from todoku.api.ingest_fast_path import ServedApp, protocol_options  # noqa: PLC0415
            from todoku.api.shared_port import PortServer  # noqa: PLC0415
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
            server_header=False, proxy_headers=False, timeout_graceful_shutdown=grace,
            timeout_keep_alive=served.bounds.idle,  # type: ignore[arg-type]  # passed to call_later, which takes a float
            backlog=served.bounds.backlog, **(options or protocol_options)(served),
        )  # fmt: skip
        self._server = PortServer(config)
        self._runner = asyncio.Runner(loop_factory=config.get_loop_factory())
        self._listening, self._grace = listening, grace
        self._thread = threading.Thread(target=self._run, name="todoku-http", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        gc.freeze()  # a full collection stops every thread; it need not visit what is loaded for good
        self._loop = self._runner.get_loop()
        self._thread.start()

    def stop(self) -> None:
        """Stops serving. Waits for running requests, and two seconds longer than they have."""
        self._server.should_exit = True
        self._thread.join(self._grace + 2.0)

    # ---------------------------------------------------------------------- with other serving processes

    def adopt(self, connection: socket.socket, first: bytes) -> None:
        """Serves a connection that another process accepted, and from which it read these bytes."""
        self._call(self._server.adopt(connection, first))

    def cover(self, number: int, listening: socket.socket) -> None:
        """Accepts the connections of another serving process, which is not there."""
        self._call(self._server.cover(number, listening))

    def uncover(self, number: int) -> None:
        """Leaves new connections to that process again."""
        self._call(self._server.uncover(number))

    def has_turned(self, within: float) -> bool:
        """Whether the event loop turns within so many seconds, and accepts connections."""
        try:
            self._call(self._server.turn()).result(within)
        except (TimeoutError, CancelledError):
            return False
        return True

    def _call(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop has ended
            work.close()
            ended: Future[None] = Future()
            ended.cancel()
            return ended

    def _run(self) -> None:
        with self._runner as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="todoku-api")
        asyncio.get_running_loop().set_default_executor(threads)
        await self._server.serve(sockets=[self._listening])
