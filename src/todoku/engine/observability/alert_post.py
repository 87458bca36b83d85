"""One POST to an address that a person set, by the standard library: it works where nothing else is installed.

The name is looked up once, every address it has is checked, and one of them is connected to; redirects are answers, no
proxy of the environment is asked, and one deadline covers everything from the connection to the last byte.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from typing import Final
from urllib.parse import SplitResult, urlsplit

from todoku.core.address_guard import Guard, check_url
from todoku.core.settings import Settings

_READ: Final = 65_536


def post(url: str, body: bytes, *, settings: Settings, seconds: float, content_type: str = "application/json") -> int:
    """The status of the answer. OSError (a TimeoutError, a refusal of the guard, …): there was none in time."""
    found = urlsplit(check_url(url, what="alert_webhook"))
    host, port = found.hostname or "", found.port or (443 if found.scheme == "https" else 80)
    address = _address(host, port, settings)
    ends = time.monotonic() + seconds
    with _secured(socket.create_connection(address, timeout=seconds), host, found.scheme) as opened:
        late = threading.Timer(max(0.01, ends - time.monotonic()), _end, [opened])  # however slowly it answers
        late.daemon = True
        late.start()
        try:
            status = _asked(found, opened, body, content_type)
        except (http.client.HTTPException, ssl.SSLError, ValueError) as error:
            raise ConnectionError(f"no answer that can be read: {type(error).__name__}") from error
        finally:
            late.cancel()
    if time.monotonic() >= ends:  # what was cut off may look like an answer
        raise TimeoutError(f"no whole answer within {seconds:g} s")
    return status


def _address(host: str, port: int, settings: Settings) -> tuple[str, int]:
    """One address of the host, if none of them is forbidden."""
    guard = Guard(allow=settings.http_allow, loopback=settings.http_loopback)
    found = [str(address[0]) for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in found:
        if (why := guard.refuses(address, host)) is not None:
            raise ConnectionRefusedError(f"{host} must not be sent to: {why}")
    return found[0], port


def _secured(plain: socket.socket, host: str, scheme: str) -> socket.socket:
    """The socket; its handshake, if there is to be one, is made by whoever uses it first."""
    if scheme == "http":
        return plain
    return ssl.create_default_context().wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)


def _asked(url: SplitResult, opened: socket.socket, body: bytes, content_type: str) -> int:
    if isinstance(opened, ssl.SSLSocket):
        opened.do_handshake()
    connection = http.client.HTTPConnection(url.netloc)
    connection.sock = opened
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    headers = {"Content-Type": content_type, "User-Agent": "todoku", "Accept-Encoding": "identity"}
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    answer.read(_READ)
    return answer.status


def _end(opened: socket.socket) -> None:
    try:
        socket.socket.shutdown(opened, socket.SHUT_RDWR)  # below TLS, which would want to say goodbye
    except OSError:
        return  # it has ended by itself
