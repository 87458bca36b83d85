"""`python -m users_example.chaos.post_office PORT FILE`: an SMTP server that notes every mail it has taken."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from email import message_from_bytes

import msgspec
from aiosmtpd.smtp import SMTP, Envelope, Session


class Mail(msgspec.Struct, frozen=True):
    """A mail that was taken: when, to whom, by which Message-ID, from which worker process."""

    at: float
    to: str
    message_id: str
    worker: int


class Noting:
    """Notes a mail before it says yes: what a sender believes is sent, is noted."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802 - its name
        """As aiosmtpd calls it."""
        mail = message_from_bytes(envelope.content if isinstance(envelope.content, bytes) else b"")
        noted = Mail(time.time(), mail["To"], mail["Message-ID"], int(mail["X-Worker"]))
        os.write(self._descriptor, msgspec.json.encode(noted) + b"\n")
        return "250 OK"


async def serve(port: int, path: str) -> None:
    """Until somebody ends the process."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(Noting(descriptor), hostname="post-office"), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))
