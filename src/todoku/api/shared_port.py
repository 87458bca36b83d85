"""How the serving processes of a daemon share a port: each request gets to a process that can answer it.

The first process serves everything. The others serve the requests that store messages, and hand every other connection
on, with the bytes they have read from it, to the first. So whatever lives in the memory of one process (health,
metrics, sign-in, streams, bulk acts) is always found, whichever process the kernel chose (decision 49).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from todoku.api.connections import Connections
from todoku.api.http_limits import BoundedProtocol
from todoku.api.ingest_fast_path import FastPathProtocol, ServedApp
from todoku.api.problem import Refused

HandOver = Callable[[int, bytes], None]
"""Takes a connection, as a file descriptor of which it becomes the owner, and the bytes that were read from it."""

PATHS: Final = ("/ingest/", "/v2/publish/", "/v2/enqueue/", "/v2/batch")
"""Where messages are stored; what is posted below is served by every process."""

_SERVED: Final = tuple(f"POST {path}".encode() for path in PATHS)


class IntakeOnly:
    """An ASGI application that refuses what only the first process serves.

    Only a client that sends a second request before it has the answer to the first gets this far with another path: its
    connection cannot be handed on in the middle of an answer.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] == "http" and not (scope["method"] == "POST" and scope["path"].startswith(PATHS)):
            raise Refused(
                421, "this was sent before the previous request on its connection was answered",
                hint="send it on a new connection", headers={"connection": "close"},
            )  # fmt: skip
        await self._app(scope, receive, send)


class HandingProtocol(FastPathProtocol):
    """The protocol of the other processes. It looks at the first bytes of each request."""

    def __init__(self, *arguments: Any, hand_over: HandOver, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._hand_over = hand_over
        self._handed = False

    def data_received(self, data: bytes) -> None:
        """Parses bytes, or hands the connection on if they begin a request that is not served here."""
        if self._handed:
            return
        if self.is_between_requests and not data.startswith(_SERVED):
            self._handed = True
            with suppress(OSError):  # too many open files: the client has to connect again
                self._hand_over(os.dup(self.transport.get_extra_info("socket").fileno()), data)
            self.drop()  # ends this process's copy of the socket; the client notices nothing
        else:
            super().data_received(data)

    @property
    def is_between_requests(self) -> bool:
        """Whether nothing of a request has been read that was not answered, to the last byte."""
        is_ending = self.refused or self.transport.is_closing()
        return not (self.mid_message or self.answering or is_ending or self.transport.get_write_buffer_size())


def handing_options(served: ServedApp, *, hand_over: HandOver) -> dict[str, Any]:
    """Returns the options of `uvicorn.Config` of a process that hands connections on; see `protocol_options`."""
    protocol = partial(
        HandingProtocol, fast_path=served.fast_path, hand_over=hand_over, connections=Connections(served.bounds)
    )
    return {"http": protocol}


class PortServer(uvicorn.Server):
    """uvicorn's server, which can also serve connections that other processes accepted, and accept from their sockets.

    Its methods run in its event loop, and wait until it accepts connections.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._is_up = asyncio.Event()
        self._covered: dict[int, asyncio.Server] = {}

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to accept connections."""
        await super().startup(sockets)
        self._is_up.set()

    async def turn(self) -> None:
        """Returns when the event loop has turned."""
        await self._is_up.wait()

    async def adopt(self, connection: socket.socket, first: bytes) -> None:
        """Serves a connection from which these bytes were read."""

        def create() -> asyncio.Protocol:
            protocol = self._create_protocol()
            protocol.first_bytes = first
            return protocol

        await self._is_up.wait()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(create, connection)
        except OSError:  # the client has gone
            connection.close()

    async def cover(self, number: int, listening: socket.socket) -> None:
        """Accepts connections of another process's socket as well, until `uncover`."""
        await self._is_up.wait()
        if number not in self._covered:
            server = await asyncio.get_running_loop().create_server(
                self._create_protocol, sock=listening.dup(), backlog=self.config.backlog
            )
            self._covered[number] = server
            self.servers.append(server)

    async def uncover(self, number: int) -> None:
        """Leaves that socket to its process. Connections that were accepted from it stay here."""
        await self._is_up.wait()
        if (server := self._covered.pop(number, None)) is not None:
            self.servers.remove(server)
            server.close()

    def _create_protocol(self) -> BoundedProtocol:
        create: Callable[..., BoundedProtocol] = self.config.http_protocol_class  # type: ignore[assignment]
        return create(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
