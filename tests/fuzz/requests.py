"""Hostile requests: a grammar of what clients, proxies and attackers send, over every route there is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from urllib.parse import quote

from tests.fuzz.inputs import SIGNATURE, TOKEN, Ending, Input, chance_of, cut, flip

Edge = tuple[str, str]
"""Method and path of a route."""

HOSTILE = (
    "", " ", "0", "-1", "1", "1e999", "9" * 40, "NaN", "null", "true", "\x00", "\x1b[2J", "\u202e", "\ud800", "é",
    "届く",
    "💣", "../../etc/passwd", "%00", "%2e%2e%2f", "%ff%fe", "a" * 3000, "'; drop table todoku_message;--", "{topic}",
    "{0.__class__}", "${x}", "<script>", "\r\nX-Injected: 1", "1,2,3", "[]", "{}", "*", "**", "msg_", "0" * 64,
    "00000000-0000-0000-0000-000000000000", "2026-01-01T00:00:00Z", "@every 1s", "* * * * *", "http://[::1", "https://",
)  # fmt: skip
"""Texts that parsers, patterns, databases and terminals stumble over."""

PARAMETERS = (
    "limit", "count", "cursor", "order", "all", "status", "topic", "destination", "queue", "reason", "key", "since",
    "until",
    "fromDate", "toDate", "state", "url", "label", "verbose", "qstash_token", "upstash-label", "ids", "scope",
    "sort", "x",
)  # fmt: skip
FIELDS = (
    "ids", "id", "why", "by", "name", "scopes", "lasts", "reason", "limit", "all", "cursor", "queueName", "parallelism",
    "paused", "endpoints", "url", "messageIds", "dlqIds", "rate", "concurrency", "when", "cron", "tz", "topic",
    "payload",
    "destination", "body", "headers", "filter", "retries", "defaults", "period", "dry_run",
)  # fmt: skip
HEADERS = (
    "Upstash-Delay", "Upstash-Not-Before", "Upstash-Retries", "Upstash-Retry-Delay", "Upstash-Timeout",
    "Upstash-Method",
    "Upstash-Callback", "Upstash-Failure-Callback", "Upstash-Cron", "Upstash-Label", "Upstash-Flow-Control-Key",
    "Upstash-Flow-Control-Value", "Upstash-Forward-X-Any", "Upstash-Content-Based-Deduplication", "Content-Type",
    "Content-Encoding", "Accept", "Cookie", "Range", "If-None-Match", "Host", "Forwarded", "X-Forwarded-For",
    "Traceparent",
    "Upstash-Queue", "Upstash-Schedule-Id", "Upstash-Redact-Fields", "X-Request-Id", "Stripe-Signature",
    "Idempotency-Key",
)  # fmt: skip
MEANT = {
    "Upstash-Delay": ("1s", "10m", "1d", "-1s", "9" * 30 + "s"), "Upstash-Retries": ("0", "5", "-1", "1e3"),
    "Upstash-Method": ("PUT", "BREW", "get"), "Upstash-Cron": ("* * * * *", "0 0 30 2 *", "*/0 * * * *"),
    "Upstash-Flow-Control-Value": ("rate=1,parallelism=2,period=1s", "rate=-1", "rate=1e99"),
    "Content-Type": ("application/json", "text/plain", "application/x-todoku-sealed", "a/b; charset=\x80", "/"),
    "Upstash-Timeout": ("1s", "0", "1e9s"), "Upstash-Retry-Delay": ("1000", "pow(2,retried)*1000", "pow(9,pow(9,9))",
    "(" * 500),
}  # fmt: skip
"""Values that mean something to the header, or nearly do."""

ENDINGS: tuple[Ending, ...] = ("wait", "wait", "wait", "half-close", "reset")

SMUGGLED = b"https://smuggled.example/"
"""A request for this is only ever written inside of a body."""

UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
STORING = ("/v2/publish", "/v2/enqueue", "/v2/batch", "/ingest")


def storing_request(seed: int, number: int) -> Input:
    """A request that stores what it carries, hostile in how it is framed, cut and decorated; its framing is certain."""
    chance = chance_of(seed, number, "storing")
    edge = chance.choice(STORING)
    count = 1 if edge == "/ingest" else chance.choice((1, 1, 1, 2, 3))
    requests, bodies, signed = [], [], b""
    for place in range(count):
        nonce = f"<{seed}.{number}.{place}>"
        target, body, inner = _storing(chance, edge, nonce)
        lines = [f"Host: localhost\r\nAuthorization: Bearer {TOKEN.decode()}\r\n".encode()]
        if edge == "/ingest":
            lines.append(b"Stripe-Signature: " + SIGNATURE + b"\r\n")
            signed = body
        elif edge != "/v2/batch":
            lines.append(b"Upstash-Delay: 1d\r\n")
        if place == count - 1 and chance.random() < 0.8:
            lines.append(b"Connection: close\r\n")
        elif chance.random() < 0.3:
            lines.append(UPGRADE)
        lines += [b"X-%d: %d\r\n" % (each, each) for each in range(chance.choice((0, 0, 3, 100)))]
        chance.shuffle(lines)
        requests.append(_certain(chance, target, b"".join(lines), body))
        bodies.append(inner)
    data = b"".join(requests)
    return Input(
        seed=seed, number=number, edge=edge, segments=cut(chance, data), bodies=tuple(bodies), signed=signed,
    )  # fmt: skip


def any_request(seed: int, number: int, edges: Sequence[Edge]) -> Input:
    """A request to any route with hostile parameters, headers and body; four in ten are broken on the wire as well."""
    chance = chance_of(seed, number, "any")
    method, path = edges[number % len(edges)]
    body = chance.choice((b"", _json(chance), _json(chance), _json(chance), chance.randbytes(40), b"[" * 20_000))
    lines = [b"Host: localhost", b"Connection: close"]
    if chance.random() < 0.9:
        lines.append(b"Authorization: Bearer " + TOKEN)
    if body[:1] in b"{[" and chance.random() < 0.9:
        lines.append(b"Content-Type: application/json")
    lines += [_header(chance) for _ in range(chance.choice((0, 1, 2, 6)))]
    first = f"{method} {_filled(chance, path)}{_query(chance)} HTTP/1.1".encode()
    if chance.random() < 0.6:
        chance.shuffle(lines)
        data = b"\r\n".join([first, *lines, b"Content-Length: %d" % len(body), b"", b""]) + body
        return Input(seed=seed, number=number, edge=f"{method} {path}", segments=cut(chance, data))
    return Input(
        seed=seed, number=number, edge=f"{method} {path}", segments=cut(chance, _broken(chance, first, lines, body)),
        ending=chance.choice(ENDINGS),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------- what stores


def _storing(chance: Random, edge: str, nonce: str) -> tuple[str, bytes, tuple[bytes, ...]]:
    """Target, body, and what is stored of it."""
    if edge == "/ingest":
        event = {"id": f"evt_{nonce}", "type": "payment_intent.succeeded", "text": _text(chance)}
        body = json.dumps(event, ensure_ascii=chance.random() < 0.5).encode()
        return "/ingest/stripe", body, (body,)
    if edge == "/v2/batch":
        texts = [f"<{nonce}{place}>{_text(chance)}" for place in range(chance.choice((1, 2, 20)))]
        items = [
            {"destination": "https://shop.example/b", "headers": {"Upstash-Delay": "1d"}, "body": text}
            for text in texts
        ]
        return "/v2/batch", json.dumps(items).encode(), tuple(text.encode() for text in texts)
    smuggling = b"POST /v2/publish/%b HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %b\r\nContent-Length: 1\r\n\r\nx"
    rest = chance.choice((
        b"", smuggling % (SMUGGLED, TOKEN), b"0\r\n\r\n" + smuggling % (SMUGGLED, TOKEN), b'{"a": 1}', b"\r\n\r\n",
        chance.randbytes(chance.choice((1, 100, 70_000))), _text(chance).encode(), b"\x00" * 10,
    ))  # fmt: skip
    body = nonce.encode() + rest
    queue = f"{chance.choice(('q', 'q-2', 'Q_3'))}/" if edge == "/v2/enqueue" else ""
    return f"{edge}/{queue}https://shop.example/hook", body, (body,)


def _certain(chance: Random, target: str, lines: bytes, body: bytes) -> bytes:
    """A request whose body ends where its head says, for every parser."""
    head = f"POST {target} HTTP/1.1\r\n".encode() + lines
    if chance.random() < 0.5:
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunks = []
    while body:
        size = chance.choice((1, 7, 100, 8192, 70_000))
        piece, body = body[:size], body[size:]
        extension = chance.choice((b"", b"", b";a=b", b";" + b"x" * 50))
        chunks.append(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece))
        if len(chunks) > 200:
            chunks.append(b"%x\r\n%b\r\n" % (len(body), body) if body else b"")
            break
    trailer = chance.choice((b"", b"", b"X-Trailer: 1\r\n", b"Upstash-Method: nonsense\r\n"))
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n" + trailer + b"\r\n"


# ------------------------------------------------------------------------------- what is anything


def _broken(chance: Random, first: bytes, lines: list[bytes], body: bytes) -> bytes:
    """A request of which neither the first line nor the framing nor any byte is certain."""
    if chance.random() < 0.2:
        verb = chance.choice((b"HEAD", b"OPTIONS", b"TRACE", b"PRI", b"CONNECT", b"X", b"G\x00T", b""))
        first = verb + first[first.index(b" ") :]
    if chance.random() < 0.2:
        first = first[:-3] + chance.choice((b"1.0", b"0.9", b"2.0", b"1.2", b""))
    lines = [*lines, *_framing(chance, body)]
    if chance.random() < 0.3:
        lines.append(f"X: {chance.choice(HOSTILE)}".encode("utf-8", "surrogatepass"))
    chance.shuffle(lines)
    data = b"\r\n".join([first, *lines, b"", b""]) + body
    if chance.random() < 0.5:
        data = flip(chance, data)
    return data[: chance.randrange(len(data))] if chance.random() < 0.1 else data


def _framing(chance: Random, body: bytes) -> list[bytes]:
    length = b"Content-Length: %d" % len(body)
    chunked = b"Transfer-Encoding: chunked"
    return chance.choice((
        [length], [length], [length], [length], [length], [], [chunked], [length, chunked], [length, length],
        [length, b"Content-Length: 3"], [b"Content-Length: -1"], [b"Content-Length: " + b"9" * 30],
        [b"Content-Length: %d" % (len(body) + 10)], [b"Content-Length: +%d" % len(body)], [b"Content-Length: 0x5"],
        [b"Transfer-Encoding: gzip, chunked"], [b"Transfer-Encoding: \x0bchunked"], [b"Transfer-Encoding : chunked"],
        [length, b"Expect: 100-continue"], [length, b"Expect: x"], [length, b"Connection: Upgrade", b"Upgrade: h2c"],
        [length, b" folded: header"], [length, b"No-Colon"], [length, b"Nul: \x00"], [length, b"Bare: a\nb: c"],
        [length, *(b"X: %d" % each for each in range(400))], [length, b"Big: " + b"a" * 100_000],
    ))  # fmt: skip


def _header(chance: Random) -> bytes:
    """A header whose value is hostile, and can be on a line."""
    name = chance.choice(HEADERS)
    value = chance.choice(MEANT[name]) if name in MEANT and chance.random() < 0.6 else chance.choice(HOSTILE)
    plain = "".join(letter for letter in value if letter >= " " and letter != "\x7f")
    return f"{name}: {plain}".encode("utf-8", "replace")


def _filled(chance: Random, path: str) -> str:
    """A path with something hostile for each of its parameters."""
    parts = []
    for part in path.split("/"):
        if not part.startswith("{"):
            parts.append(part)
        elif part == "{destination:path}" and chance.random() < 0.5:
            parts.append(
                chance.choice(("https://shop.example/x", "http://127.0.0.1:1/", "group", "https:/shop.example"))
            )
        else:
            value = chance.choice(HOSTILE)
            parts.append(quote(value, safe=chance.choice(("", "%/:*")), errors="surrogatepass"))
    return "/".join(parts)


def _query(chance: Random) -> str:
    if chance.random() < 0.5:
        return ""
    pairs = [
        f"{chance.choice(PARAMETERS)}={quote(chance.choice(HOSTILE), safe='', errors='surrogatepass')}"
        for _ in range(chance.choice((1, 1, 2, 5)))
    ]
    return "?" + "&".join(pairs)


def _json(chance: Random) -> bytes:
    text = json.dumps(_value(chance, 3))
    return text.encode() if chance.random() < 0.8 else text.encode()[: chance.randrange(len(text) + 1)]


def _value(chance: Random, deep: int) -> object:
    plain = (None, True, 0, -1, 1 << 70, 1.5e308, chance.choice(HOSTILE), chance.choice(HOSTILE), "x" * 20_000)
    if deep == 0 or chance.random() < 0.3:
        return chance.choice(plain)
    if chance.random() < 0.2:
        return [_value(chance, deep - 1) for _ in range(chance.choice((0, 1, 3)))]
    return {chance.choice(FIELDS): _value(chance, deep - 1) for _ in range(chance.choice((1, 2, 4)))}


def _text(chance: Random) -> str:
    """Something that both databases can store."""
    return chance.choice(HOSTILE).replace("\x00", "").replace("\ud800", "") + chance.choice(("", "x" * 5000))
