"""Hostile answers: what a receiver may send back to a delivery, or leave out."""

from __future__ import annotations

from random import Random

from tests.fuzz.inputs import Ending, Input, chance_of, cut, flip

STATUSES = ("200 OK", "204 No Content", "201", "299 x", "301 Moved", "304 Not Modified", "400 Bad", "404 Not",
"429 Slow", "489 No",
            "500 Broken", "503 Busy", "999 x", "100 Continue", "101 Switching", "103 Early", "0 x", "-1 x", "abc",
            "")  # fmt: skip
VALUES = (
    b"", b"0", b"-1", b"9" * 40, b"\x00", b"\x1b[2J", b"\xff\xfe", b"a" * 9000, b"Wed, 99 Foo 9999 99:99:99 GMT",
    b"nan", b"inf",
    b"true", b"close", b"keep-alive", b"chunked", b"gzip", b"gzip, chunked", b"h2c", b"http://169.254.169.254/",
)  # fmt: skip
NAMES = (
    b"Retry-After", b"RateLimit-Reset", b"X-RateLimit-Reset", b"Upstash-NonRetryable-Error", b"Content-Type",
    b"Location",
    b"Content-Length", b"Transfer-Encoding", b"Connection", b"Upgrade", b"Content-Encoding", b"Set-Cookie",
    b"Keep-Alive", b"",
    b"Date", b"Trailer", b"X " , b"X\x00",
)  # fmt: skip


def hostile_answer(seed: int, number: int) -> Input:
    """What the receiver of the request with this number answers."""
    chance = chance_of(seed, number, "answer")
    body = chance.choice((b"", b"{}", b"x" * 100, b"x" * 200_000, chance.randbytes(500), b"\x1b[2J\r\n" * 9, b"<html>"))
    head = (
        f"{chance.choice(('HTTP/1.1',) * 9 + ('HTTP/1.0', 'HTTP/2', 'ICY', ''))} {chance.choice(STATUSES)}\r\n".encode()
    )
    lines = [
        b"%b: %b\r\n" % (chance.choice(NAMES), chance.choice(VALUES)) for _ in range(chance.choice((0, 0, 1, 3, 150)))
    ]
    lines.append(_framing(chance, body))
    announced = b"HTTP/1.1 103 Early\r\n\r\n" * chance.choice((0, 0, 0, 0, 1, 9, 10, 11, 2000))
    data = announced + head + b"".join(lines) + b"\r\n" + _body(chance, lines[-1], body)
    match chance.randrange(10):
        case 0:
            data = flip(chance, data)
        case 1:
            data = data[: chance.randrange(len(data))]
        case 2:
            data += b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"  # an answer without a request
        case 3:
            data = b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 300_000
        case _:
            pass
    endings: tuple[Ending, ...] = ("half-close", "half-close", "wait", "reset")
    return Input(seed=seed, number=number, edge="receiver", segments=cut(chance, data), ending=chance.choice(endings))


def _framing(chance: Random, body: bytes) -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return chance.choice((
        length, length, length, b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked\r\n", b"",
        length + length,
        b"Content-Length: %d\r\n" % (len(body) + 5), b"Content-Length: -5\r\n",
        b"Content-Length: 1\r\nContent-Length: 2\r\n",
        length + b"Transfer-Encoding: chunked\r\n",
    ))  # fmt: skip


def _body(chance: Random, framing: bytes, body: bytes) -> bytes:
    if b"chunked" not in framing:
        return body
    size = chance.choice((b"%x" % len(body), b"%x;ext" % len(body), b"ffffffffffffffff", b"-1", b"zz", b""))
    return size + b"\r\n" + body + b"\r\n0\r\n" + chance.choice((b"\r\n", b"X: y\r\n\r\n", b"", b"X: " + b"y" * 90_000))
