"""SEC-13: sealed headers open in their own row only: for their message, for the kind of request they are, its method
and its URL. A writer to the database who has no key cannot make a worker send them otherwise."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

import todoku
from tests.destinations.http.receiving import Receiver, receiving
from tests.encryption.conftest import Boxes, boxes, new_key
from tests.encryption.test_requests import drained, publish, reasons, sending
from tests.support.serving import SOMEBODY, serving
from tests.support.world import World
from todoku.core.sealed import MasterKey
from todoku.engine.encryption.cipher import Cipher, unwrap, wrap
from todoku.engine.encryption.key_rotation import rotate
from todoku.engine.encryption.stored_secrets import reseal

__all__ = ["boxes"]

CANARY = "canary-of-sealed-headers"
HTTP, SECRETS = "todoku-http", "todoku-secrets"
DROP = "delete from todoku_delivery where message_seq = (select seq from todoku_message where id = ?)"
"""Let a message be there, and not be sent."""

Headers = dict[str, Any]


@pytest.fixture
def key() -> str:
    return new_key("2026-11")


@pytest.fixture
def box(boxes: Boxes, key: str) -> todoku.App:
    return sending(boxes, key)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def posted(box: todoku.App, receiver: Receiver, name: str) -> UUID:
    """A request and both its callbacks, all to one URL by one method, each with a secret of its own."""
    url = f"{receiver.url}/hook"
    with serving(box) as server:
        return publish(
            server, url, b"{}", retries="0", forward_authorization=f"{CANARY}-{name}-request",
            callback=url, callback_retries="0", callback_forward_authorization=f"{CANARY}-{name}-callback",
            failure_callback=url, failure_callback_retries="0",
            failure_callback_forward_authorization=f"{CANARY}-{name}-failure",
        )  # fmt: skip


def stored(world: World, id: UUID) -> Headers:
    """The headers of a message, with the request in them decoded."""
    ((text,),) = world.sql("select headers from todoku_message where id = ?", str(id))
    found: Headers = json.loads(text) if isinstance(text, str) else text
    return found | {HTTP: json.loads(found[HTTP])}


def write(world: World, id: UUID, headers: Headers) -> None:
    text = json.dumps(headers | {HTTP: json.dumps(headers[HTTP])})
    world.sql("update todoku_message set headers = ? where id = ?", text, str(id))


def got(receiver: Receiver) -> list[str]:
    """Which secrets arrived, in order."""
    found = [value for request in receiver.received for value in request.values("Authorization")]
    return [value.removeprefix(f"{CANARY}-") for value in found]


def test_in_its_own_row_each_arrives(box: todoku.App, receiver: Receiver) -> None:
    posted(box, receiver, "a")
    drained(box)
    assert got(receiver) == ["a-request", "a-callback"]


def other_method(mine: Headers, _other: Headers, _id: UUID) -> None:
    mine[HTTP]["method"] = "DELETE"


def other_url(mine: Headers, _other: Headers, _id: UUID) -> None:
    mine[HTTP]["url"] += "?all=true"


def other_row(mine: Headers, other: Headers, _id: UUID) -> None:
    mine[SECRETS] = other[SECRETS]


def as_the_callback_of_another(mine: Headers, other: Headers, id: UUID) -> None:
    mine[SECRETS] = other[HTTP]["callback"]["sealed"]
    mine[HTTP] |= {"source": str(id), "kind": "callback"}


def as_a_callback_with_the_request_of_another(mine: Headers, other: Headers, id: UUID) -> None:
    mine[SECRETS] = other[SECRETS]
    mine[HTTP] |= {"source": str(id), "kind": "request"}


def callback_as_request(mine: Headers, _other: Headers, _id: UUID) -> None:
    mine[SECRETS] = mine[HTTP]["callback"]["sealed"]


def failure_as_request(mine: Headers, _other: Headers, _id: UUID) -> None:
    mine[SECRETS] = mine[HTTP]["failureCallback" if "failureCallback" in mine[HTTP] else "failure_callback"]["sealed"]


Change = Callable[[Headers, Headers, UUID], None]
CHANGES: list[Change] = [
    other_method, other_url, other_row, as_the_callback_of_another, as_a_callback_with_the_request_of_another,
    callback_as_request, failure_as_request,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=[change.__name__ for change in CHANGES])
def test_a_request_that_was_changed_is_not_sent(
    box: todoku.App, world: World, receiver: Receiver, change: Change
) -> None:
    id, other = posted(box, receiver, "a"), posted(box, receiver, "b")
    mine = stored(world, id)
    change(mine, stored(world, other), other)
    write(world, id, mine)
    world.sql(DROP, str(other))
    drained(box)
    assert ("http.request", "BAD_CIPHERTEXT") in reasons(world)
    assert "a-request" not in got(receiver)
    assert [one for one in got(receiver) if one.startswith("b-")] == []


def test_of_a_forged_callback_nothing_is_sent_by_the_request_itself(
    box: todoku.App, world: World, receiver: Receiver
) -> None:
    """A row that says of itself that it is its own callback."""
    id = posted(box, receiver, "a")
    mine = stored(world, id)
    mine[SECRETS] = mine[HTTP]["callback"]["sealed"]
    mine[HTTP] |= {"source": str(id), "kind": "callback"}
    write(world, id, mine)
    world.sql("update todoku_message set topic = 'http.callback' where id = ?", str(id))
    drained(box)
    assert got(receiver) == []


def swap_ends(mine: Headers) -> None:
    one, other = mine[HTTP]["callback"], mine[HTTP]["failure_callback"]
    one["sealed"], other["sealed"] = other["sealed"], one["sealed"]


def request_as_callback(mine: Headers) -> None:
    mine[HTTP]["callback"]["sealed"] = mine[SECRETS]


def callback_by_another_method(mine: Headers) -> None:
    mine[HTTP]["callback"]["method"] = "PUT"


@pytest.mark.parametrize("change", [swap_ends, request_as_callback, callback_by_another_method])
def test_a_callback_that_was_changed_is_not_sent(
    box: todoku.App, world: World, receiver: Receiver, change: Callable[[Headers], None]
) -> None:
    id = posted(box, receiver, "a")
    mine = stored(world, id)
    change(mine)
    write(world, id, mine)
    drained(box)
    assert got(receiver) == ["a-request"]
    assert reasons(world) == [("http.callback", "BAD_CIPHERTEXT")]


# ------------------------------------------------------------------------------------------------------ rows of 0.1


class Before:
    """A process of 0.1: its data key, and what it sealed."""

    def __init__(self, world: World, master: str, id: UUID | None = None) -> None:
        name, _, text = master.partition(":")
        self.id, self.key = id or uuid4(), os.urandom(32)
        if id is None:
            row = wrap(self.id, "2026-11-01", MasterKey(name, base64.b64decode(text)), self.key, os.urandom)
            world.sql(
                "insert into todoku_data_key (id, day, master_key_id, wrapped, created_at) values (?, ?, ?, ?, ?)",
                str(row.id), row.day, row.master_key_id, row.wrapped, 0 if world.backend == "sqlite" else row.day,
            )  # fmt: skip

    def sealed(self, secrets: dict[str, str], message: UUID, url: str) -> str:
        """As 0.1 did it: bound to the message and the URL."""
        parts = ["todoku sealed 1", "headers", str(message), url, "application/json"]
        bound = b"".join(len(part).to_bytes(4) + part.encode() for part in parts)
        nonce = os.urandom(12)
        box = Cipher(self.key).encrypt(nonce, json.dumps(secrets).encode(), bound)
        return f"{self.id}.{base64.b64encode(bytes([1]) + self.id.bytes + nonce + box).decode()}"

    def took(self, world: World, id: UUID) -> None:
        """Let a message be one that this process published."""
        mine = stored(world, id)
        url = mine[HTTP]["url"]
        mine[SECRETS] = self.sealed({"Authorization": f"{CANARY}-old-request"}, id, url)
        for kind in ("callback", "failure_callback"):
            mine[HTTP][kind]["sealed"] = self.sealed({"Authorization": f"{CANARY}-old-{kind}"}, id, url)
        write(world, id, mine)


def test_what_an_older_version_sealed_still_arrives(boxes: Boxes, world: World, receiver: Receiver, key: str) -> None:
    """Also after its data key was wrapped by another master key."""
    box = sending(boxes, key)
    before = Before(world, key)
    before.took(world, posted(box, receiver, "a"))
    drained(box)
    assert got(receiver) == ["old-request", "old-callback"]
    later = new_key("2027-05")
    rotated = sending(boxes, later, key)
    assert rotate(rotated.store.data_keys, rotated.settings.master_keys, SOMEBODY).number == 2
    reseal(rotated.store.secrets, rotated.settings.master_keys, SOMEBODY)
    after = sending(boxes, later)
    before.took(world, posted(after, receiver, "b"))
    drained(after)
    assert got(receiver)[2:] == ["old-request", "old-callback"]


def test_what_an_older_version_sealed_opens_in_no_other_row(
    box: todoku.App, world: World, receiver: Receiver, key: str
) -> None:
    before = Before(world, key)
    id, other = posted(box, receiver, "a"), posted(box, receiver, "b")
    before.took(world, id)
    theirs = stored(world, other)
    theirs[SECRETS] = stored(world, id)[SECRETS]
    write(world, other, theirs)
    world.sql(DROP, str(id))
    drained(box)
    assert "old-request" not in got(receiver)
    assert ("http.request", "BAD_CIPHERTEXT") in reasons(world)


def test_what_is_sealed_now_cannot_pass_for_older(box: todoku.App, world: World, receiver: Receiver) -> None:
    """With another version written before it; the version is bound, too."""
    id = posted(box, receiver, "a")
    mine = stored(world, id)
    name, _, text = mine[SECRETS].partition(".")
    raw = base64.b64decode(text)
    assert raw[0] == 2
    mine[SECRETS] = f"{name}.{base64.b64encode(bytes([1]) + raw[1:]).decode()}"
    write(world, id, mine)
    drained(box)
    assert "a-request" not in got(receiver)
    assert ("http.request", "BAD_CIPHERTEXT") in reasons(world)


def test_a_data_key_of_today_opens_nothing_of_the_older_kind(
    box: todoku.App, world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """So the older binding goes with the data keys of 0.1, and is not a second way in for what is sealed now."""
    id = posted(box, receiver, "a")
    current = box.outbox.sealer._key
    assert current is not None
    before = Before(world, key, current.row.id)
    monkeypatch.setattr(before, "key", _plain_key(box))
    before.took(world, id)
    drained(box)
    assert got(receiver) == []
    assert reasons(world) == [("http.callback", "BAD_CIPHERTEXT"), ("http.request", "BAD_CIPHERTEXT")]


def _plain_key(box: todoku.App) -> bytes:
    current = box.outbox.sealer._key
    assert current is not None
    return unwrap(current.row, box.settings.master_keys.current)
