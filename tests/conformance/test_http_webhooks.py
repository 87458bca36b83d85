"""Webhooks of workflow runs: a request to one is stored once, in one commit, for its own run only."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest

from tests.conformance.test_http_runs import DAY, HOUR, MASTER, Runs, step
from tests.support.world import SOMEBODY, World
from todoku.core.errors import DatabaseUnavailable, InvalidMessage, NotThere
from todoku.core.workflow_run import MOST_BYTES, Wait
from todoku.core.workflow_webhook import MOST_KEPT, WebhookRequest, webhook_digest
from todoku.engine.http import run_views
from todoku.engine.http.run_webhooks import RunWebhooks
from todoku.store.failpoint import armed, lose

MADE = "https://todoku.example:8443/v2/workflows/hooks/user/{run}/evt_guessable"


class Hooked(Runs):
    """A run with webhooks."""

    def __init__(self, world: World, **settings: object) -> None:
        super().__init__(world, **settings)
        self.webhooks = RunWebhooks(self.http.outbox)

    def create(self, number: int = 1, *, run: str = "wfr_1") -> str:
        """A step creates a webhook, as the SDK does it. Returns the token in its URL."""
        made = self.publish(run, creating(number, run))
        (*_, created) = self.body(made.id, run) or ()
        told = json.loads(created["out"])
        assert told["webhookUrl"] == f"https://todoku.example:8443/v2/workflows/hooks/user/{run}/{told['eventId']}"
        return str(told["eventId"])

    def wait(self, number: int, token: str, *, run: str = "wfr_1", timeout: str = "1h") -> Any:
        waiting = {"stepId": number, "stepName": "wait", "stepType": "WaitForWebhook", "concurrent": 1}
        return self.acts.wait(run, token, Wait(step=waiting, timeout=timeout))

    def request(self, token: str, body: bytes = b"paid", *, run: str = "wfr_1", **more: Any) -> bool:
        made = {"method": "POST", "path": "/v2/workflows/hooks/user/x", "headers": [(b"x-own", b"1")], **more}
        return self.webhooks.receive(run, webhook_digest(token), WebhookRequest(body=body, **made))

    def received(self, message_id: Any, run: str = "wfr_1") -> bytes | None:
        """The body of the request in the last step of a call; None: the time to wait is over."""
        (*_, last) = self.body(message_id, run) or ()
        if last["waitTimeout"]:
            return None
        event = json.loads(base64.b64decode(last["out"]))
        assert (event["proto"], event["host"], event["header"]) == ("https", "todoku.example:8443", {"x-own": ["1"]})
        return base64.b64decode(event["body"])


def creating(number: int, run: str, url: str = MADE, **more: Any) -> bytes:
    out = json.dumps({"webhookUrl": url.format(run=run), "eventId": "evt_guessable"})
    named = {"stepId": number, "stepName": "create", "stepType": "CreateWebhook", "concurrent": 1}
    return msgspec.json.encode({**named, "out": out, **more})


@pytest.fixture
def hooked(world: World) -> Hooked:
    hooked = Hooked(world)
    hooked.start()
    return hooked


def test_the_token_is_of_todoku_and_only_its_digest_is_a_key(hooked: Hooked) -> None:
    token = hooked.create()
    assert token != "evt_guessable"
    assert len(token) == 47
    assert hooked.webhooks.find("wfr_1", token) == webhook_digest(token)
    assert hooked.webhooks.find("wfr_1", "evt_guessable") is None
    assert hooked.webhooks.find("wfr_2", token) is None
    assert hooked.webhooks.find("\x00", token) is None
    assert hooked.publish("wfr_1", creating(1, "wfr_1")).duplicate, "the SDK repeats it: the first URL holds"
    assert hooked.webhooks.find("wfr_1", token) is not None


def test_a_request_continues_the_run_that_waits_once(hooked: Hooked) -> None:
    token = hooked.create()
    call = hooked.wait(2, token)
    assert hooked.request(token)
    assert hooked.received(call) == b"paid"
    assert hooked.request(token, b"second"), "it is kept for the next wait"
    assert hooked.received(hooked.wait(3, token)) == b"second"


def test_an_early_request_is_kept_until_the_run_waits(hooked: Hooked) -> None:
    token = hooked.create()
    assert hooked.request(token, b"early")
    assert hooked.request(token, b"later")
    assert hooked.received(hooked.wait(2, token)) == b"early"
    assert hooked.received(hooked.wait(3, token)) == b"later"


def test_the_time_to_wait_for_a_webhook_ends(hooked: Hooked, world: World) -> None:
    token = hooked.create()
    call = hooked.wait(2, token)
    world.advance(HOUR + 1)
    assert hooked.received(call) is None


def test_a_request_is_stored_with_the_call_that_follows_or_not_at_all(hooked: Hooked) -> None:
    """I2: the sender repeats what was not answered."""
    token = hooked.create()
    call = hooked.wait(2, token)
    with armed("http_run.before_commit", lose), pytest.raises(DatabaseUnavailable):
        hooked.request(token)
    assert len(hooked.calls.steps("wfr_1")) == 2
    with armed("http_run.after_commit", lose), pytest.raises(DatabaseUnavailable):
        hooked.request(token)
    assert hooked.received(call) == b"paid"


def test_no_client_can_send_the_event_of_a_webhook(hooked: Hooked) -> None:
    """Nobody forges a request: neither by the token as an event, nor by the event that is stored."""
    token = hooked.create()
    hooked.wait(2, token)
    assert hooked.acts.notify(token, b"forged") == []
    assert hooked.acts.notify(token, b"forged", "wfr_1") == []
    with pytest.raises(InvalidMessage):
        hooked.acts.notify(f"webhook {webhook_digest(token)}", b"forged")
    assert len(hooked.calls.steps("wfr_1")) == 2


def test_a_webhook_belongs_to_its_run(hooked: Hooked) -> None:
    hooked.start("wfr_2")
    token, other = hooked.create(), hooked.create(run="wfr_2")
    for wrong, run in ((token, "wfr_2"), (other, "wfr_1"), (token, "wfr_3"), ("evt_none", "wfr_1")):
        with pytest.raises(NotThere):
            hooked.request(wrong, run=run)
    assert hooked.request(token)


def test_an_ended_run_serves_no_webhook(hooked: Hooked, world: World) -> None:
    token = hooked.create()
    hooked.acts.cancel("wfr_1", SOMEBODY)
    assert hooked.webhooks.find("wfr_1", token) is None
    with pytest.raises(NotThere):
        hooked.request(token)
    assert world.sql("select count(*) from todoku_http_webhook")[0][0] == 0


def test_webhooks_are_pruned_with_their_run(hooked: Hooked, world: World) -> None:
    """A run that was abandoned: nothing of it waits, runs or is a dead letter."""
    hooked.create()
    world.settle(hooked.claim())
    world.advance(8 * DAY)
    assert world.store.retention.prune(history_ttl=7 * DAY).http_runs == 1
    assert world.sql("select count(*) from todoku_http_webhook")[0][0] == 0


def test_what_is_kept_for_a_run_is_bounded(hooked: Hooked) -> None:
    """Whoever knows a URL can neither fill the database nor make a run too large to go on."""
    token = hooked.create()
    large = b"x" * (MOST_BYTES // 8)
    stored = 0
    while hooked.request(token, large):
        stored += 1
    assert 1 <= stored < 8
    assert hooked.received(hooked.wait(2, token)) == large
    small = 0
    while hooked.request(token, b""):
        small += 1
    assert small + stored - 1 == MOST_KEPT


@pytest.mark.parametrize(
    "made",
    [
        "https://elsewhere.example/x", "https://todoku.example/v2/workflows/hooks/u/wfr_2/evt_guessable",
        "ftp://a/{run}/evt_guessable", "https://a:b@c/{run}/evt_guessable", "https://[/{run}/evt_guessable",
        "https://a:99999/{run}/evt_guessable", "https://a/{run}/evt_guessable?{run}/evt_guessable",
    ],
)  # fmt: skip
def test_a_step_creates_a_webhook_of_its_own_run_only(hooked: Hooked, made: str) -> None:
    with pytest.raises(InvalidMessage):
        hooked.publish("wfr_1", creating(1, "wfr_1", made))
    assert len(hooked.calls.steps("wfr_1")) == 1


def test_a_plan_creates_none(hooked: Hooked, world: World) -> None:
    plan = {"stepId": 0, "targetStep": 1, "stepName": "create", "stepType": "CreateWebhook", "concurrent": 2}
    hooked.publish("wfr_1", msgspec.json.encode(plan))
    assert world.sql("select count(*) from todoku_http_webhook")[0][0] == 0


def test_encrypted_runs_keep_requests_sealed_and_logs_hide_the_url(world: World) -> None:
    hooked = Hooked(world, encrypt="all", master_keys=MASTER)
    hooked.start()
    token = hooked.create()
    assert hooked.request(token, b"secret")
    for table in ("todoku_http_event", "todoku_http_run_step", "todoku_http_webhook", "todoku_message"):
        assert not any(text in str(world.sql(f"select * from {table}")) for text in (token, "c2VjcmV0", "secret"))
    (view,) = run_views.find(hooked.http.outbox, run_views.RunFilter()).runs
    assert token not in str(view)
    assert hooked.received(hooked.wait(2, token)) == b"secret"


def test_other_steps_are_stored_as_they_came(hooked: Hooked) -> None:
    one = hooked.step(1, "a")
    assert (hooked.body(one.id) or ())[-1] == json.loads(step(1, "a"))
