"""Sends inputs, and looks at what became of them: answers, bodies in the database, connections that end, memory."""

from __future__ import annotations

import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from uuid import UUID

import msgspec

from tests.fuzz.answers import hostile_answer
from tests.fuzz.inputs import SIGNATURE, TOKEN, Failure, Input
from tests.fuzz.receiver import HostileReceiver
from tests.fuzz.requests import SMUGGLED, any_request, storing_request
from tests.fuzz.target import PATIENCE, Target, connect
from tests.support.raw_http import RawConnection, request
from todoku.core.http_request import HTTP
from todoku.store.deliveries import Filter

AT_ONCE = 32
"""Connections at the same time."""
ROUND = 128
"""Inputs after which the database is looked at."""
GROWTH = 128 << 10
"""Kilobytes by which a daemon may grow after its first rounds before that counts as a leak."""

_EVENTS = re.compile(rb"\r\ncontent-type: text/event-stream", re.IGNORECASE)
"""An answer that goes on for as long as its reader listens."""
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_NONCE = re.compile(rb"<\d+\.\d+\.\d+>(?:\d+>)?")
_REFUSED_VERSION = 505


class Tally(msgspec.Struct):
    """What a run came to."""

    inputs: Counter[str] = msgspec.field(default_factory=Counter)
    statuses: Counter[int] = msgspec.field(default_factory=Counter)
    bodies: int = 0
    healthy: int = 0
    grown: list[int] = msgspec.field(default_factory=list)
    failures: list[Failure] = msgspec.field(default_factory=list)

    def failed(self, what: str, target: Target, input: Input) -> None:
        self.failures.append(Failure(what, target.store, input))


Going = Callable[[], bool]
"""Whether there is time for another round."""


def fuzz_requests(target: Target, seed: int, going: Going, tally: Tally, *, most: int | None = None) -> None:
    """Rounds of hostile requests, in turn: such as store, whose bodies are looked for, and such as may do anything."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for start in _rounds(going, most):
            if start // ROUND % 2 == 0:
                inputs = [storing_request(seed, number) for number in range(start, start + ROUND)]
            else:
                inputs = [any_request(seed, number, target.edges) for number in range(start, start + ROUND)]
            answers = list(threads.map(lambda each: send(target, each), inputs))
            _look_at_answers(target, tally, inputs, answers)
            _look_at_bodies(target, tally, inputs, answers)
            _measure(target, tally, start)
    _look_at_daemon(target, tally, inputs[-1])


def fuzz_receivers(target: Target, seed: int, going: Going, tally: Tally, *, most: int | None = None) -> None:
    """Rounds of deliveries whose receiver answers with something hostile: each must be settled all the same."""
    receiver = HostileReceiver(seed)
    try:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for start in _rounds(going, most):
                answers = [hostile_answer(seed, number) for number in range(start, start + ROUND)]
                ids = list(threads.map(lambda answer: _publish(target, receiver.port, answer.number), answers))
                _look_at_deliveries(target, tally, receiver, answers, ids)
                _measure(target, tally, start)
    finally:
        receiver.close()
    _look_at_daemon(target, tally, answers[-1])


def send_again(target: Target, input: Input, tally: Tally) -> None:
    """One input alone, of either edge."""
    if input.edge == "receiver":
        receiver = HostileReceiver(input.seed, only=input)
        _look_at_deliveries(target, tally, receiver, [input], [_publish(target, receiver.port, input.number)])
        receiver.close()
    else:
        answers = [send(target, input)]
        _look_at_answers(target, tally, [input], answers)
        _look_at_bodies(target, tally, [input], answers)
    _look_at_daemon(target, tally, input)


def send(target: Target, input: Input) -> bytes | None:
    """Everything that was answered until the connection ended, or an event stream began. None: neither happened."""
    with connect(target.port) as connection:
        try:
            for segment in input.segments:
                connection.sendall(segment.replace(SIGNATURE, target.signed(input.signed)) if input.signed else segment)
            if input.ending == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return b""
            if input.ending == "half-close":
                connection.shutdown(socket.SHUT_WR)
        except ConnectionError:
            pass  # the server hung up while more was sent: what it answered can still be read
        came = b""
        try:
            while (part := connection.recv(65_536)) and not _EVENTS.search(came := came + part):
                pass
        except TimeoutError:
            return None
        except ConnectionError:
            pass
        return came


def statuses(came: bytes, input: Input) -> list[int]:
    """The status of each answer; of an input that is not certain only the first one: what follows may be a body."""
    found = []
    while (matched := _STATUS.match(came)) is not None:
        status = int(matched[1])
        if status >= 200:
            found.append(status)
        if not input.bodies and status >= 200:
            break
        head, _, came = came.partition(b"\r\n\r\n")
        length = _LENGTH.search(head + b"\r\n")
        came = came[int(length[1]) if length else 0 :]
    return found


# ------------------------------------------------------------------------------------------- looking


def _look_at_answers(target: Target, tally: Tally, inputs: Sequence[Input], answers: Sequence[bytes | None]) -> None:
    for input, came in zip(inputs, answers, strict=True):
        tally.inputs[input.edge] += 1
        if came is None:
            tally.failed("hang: the connection did not end", target, input)
            continue
        found = statuses(came, input)
        tally.statuses.update(found)
        if any(status >= 500 and status != _REFUSED_VERSION for status in found):
            tally.failed(f"5xx: {found}", target, input)
        if input.bodies and len(found) > len(input.bodies):
            tally.failed(f"lost body: {len(found)} answers to {len(input.bodies)} requests", target, input)


def _look_at_bodies(target: Target, tally: Tally, inputs: Sequence[Input], answers: Sequence[bytes | None]) -> None:
    """What was acknowledged is stored byte for byte; what was refused is not, and nothing was smuggled in."""
    if not any(input.bodies for input in inputs):
        return  # they may have deleted as well as stored
    stored = _stored(target)
    if any(url.startswith(SMUGGLED.decode()) for _, url in stored):
        tally.failed("lost body: a part of a body was taken for a request", target, inputs[0])
    payloads = {found[0]: payload for payload, _ in stored if (found := _NONCE.search(payload)) is not None}
    for input, came in zip(inputs, answers, strict=True):
        for status, bodies in zip(statuses(came or b"", input), input.bodies, strict=False):
            for body in bodies:
                found = _NONCE.search(body)
                nonce = b"" if found is None else found[0]
                tally.bodies += status < 300
                if status < 300 and payloads.get(nonce) != body:
                    tally.failed(f"lost body: {payloads.get(nonce, b'nothing')[:200]!r} is stored", target, input)
                elif status >= 400 and nonce in payloads:
                    tally.failed(f"lost body: refused with {status}, and stored", target, input)


def _look_at_deliveries(
    target: Target, tally: Tally, receiver: HostileReceiver, answers: Sequence[Input], ids: Sequence[UUID]
) -> None:
    """Each delivery was settled, whatever its receiver answered, and what the receiver got is what was published."""
    unsettled = _await_settled(target)
    for answer, id in zip(answers, ids, strict=True):
        tally.inputs["receiver"] += 1
        tally.bodies += 1
        if f"/a/{answer.number} " in unsettled:
            tally.failed("hang: the delivery was not settled", target, answer)
        elif receiver.came.get(answer.number, _body(answer.number)) != _body(answer.number):
            tally.failed("lost body: the receiver got another one than was published", target, answer)
        elif answer.number not in receiver.came and _arrived(target, id):
            tally.failed("lost body: it counts as arrived, and the receiver never had it", target, answer)


def _arrived(target: Target, id: UUID) -> bool:
    story = target.box.store.messages.story(id)
    return story is not None and any(row.status == "succeeded" for row in story.deliveries)


def _stored(target: Target) -> list[tuple[bytes, str]]:
    """Payload and URL of every message that was stored since this was asked last."""
    store, before, cursor = target.box.store, target.newest, None
    found: list[tuple[bytes, str]] = []
    while True:
        page = store.deliveries.find(Filter(), limit=500, cursor=cursor)
        for row in page.items:
            if row.id <= before:
                return found
            target.newest = max(target.newest, row.id)
            story = None if row.message_id is None else store.messages.story(row.message_id)
            if story is not None:
                message = story.message
                payload = message.payload_bytes if message.payload is None else message.payload.encode()
                found.append((payload or b"", _url(message.headers)))
        cursor = page.next
        if cursor is None:
            return found


def _url(headers: str | None) -> str:
    """Where a message goes, by its stored headers; nowhere, if it carries no request."""
    found = msgspec.json.decode(headers or "{}", type=dict[str, str]).get(HTTP)
    return "" if found is None else str(msgspec.json.decode(found)["url"])


def _measure(target: Target, tally: Tally, start: int) -> None:
    if start // ROUND % 8 == 2:
        tally.grown.append(target.memory())


def _look_at_daemon(target: Target, tally: Tally, input: Input) -> None:
    """The daemon lives, was healthy all the time, logged no error and has not grown without end."""
    tally.healthy += target.healthy
    for what in target.unhealthy:
        tally.failed(f"hang: health was not served: {what}", target, input)
    for line in target.errors():
        tally.failed(f"error in the log: {line[:1000]}", target, input)
    if not target.alive():
        tally.failed("the daemon ended", target, input)
        return
    now = target.memory()
    if tally.grown and now - tally.grown[0] > GROWTH:
        tally.failed(f"memory: {now - tally.grown[0]} KB more", target, input)
    tally.grown.append(now)


# ------------------------------------------------------------------------------------------ delivering


def _body(number: int) -> bytes:
    return b"body of %d" % number


def _publish(target: Target, port: int, number: int) -> UUID:
    """A message to the hostile receiver: one attempt of at most a second, and a callback that tells of it."""
    headers = {
        "Authorization": f"Bearer {TOKEN.decode()}", "Upstash-Retries": "0", "Upstash-Timeout": "1s",
        "Connection": "close",
        "Upstash-Callback": f"http://127.0.0.1:{port}/callback", "Upstash-Callback-Retries": "0",
        "Upstash-Failure-Callback": f"http://127.0.0.1:{port}/callback", "Upstash-Failure-Callback-Retries": "0",
    }  # fmt: skip
    # An address each: ten failures in a row would open the breaker of one, and what is for it would wait, as it should.
    place = number + 1  # 127.0.0.0 is the network
    url = f"http://127.{place >> 16}.{place >> 8 & 255}.{place & 255}:{port}/a/{number}"
    with RawConnection(target.port) as connection:
        connection.send(request("POST", f"/v2/publish/{url}", headers, _body(number)))
        answer = connection.answer()
    assert answer.status == 200, answer
    return UUID(answer.json()["messageId"].removeprefix("msg_"))


def _await_settled(target: Target) -> str:
    """Wait until nothing is under way. The URLs of what still is when patience ends."""
    store = target.box.store
    until = time.monotonic() + PATIENCE
    while True:
        rows = [
            row
            for status in ("pending", "sending", "failed")
            for row in store.deliveries.find(Filter(status=status), limit=500).items
        ]
        if not rows:
            return ""
        if time.monotonic() > until:
            stories = [store.messages.story(row.message_id) for row in rows if row.message_id is not None]
            return " ".join(_url(story.message.headers) + " " for story in stories if story is not None)
        time.sleep(0.02)


def _rounds(going: Going, most: int | None) -> Iterator[int]:
    """The number that each round begins with."""
    for start in count(0, ROUND):
        if (most is not None and start >= most) or (most is None and start > 0 and not going()):
            return
        yield start
