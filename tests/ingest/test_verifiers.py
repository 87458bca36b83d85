"""Signatures of sources (S4-60): the vendors' own vectors, every byte flipped, every secret tried, time both ways."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import stripe

import todoku
from tests.ingest.signers import KINDS, OLD, SECRET, TIMED, Kind, event
from todoku.core.ingest import Challenge, Identity, ReceivedRequest, Verifier
from todoku.sources.signing import MOST_SIGNATURES, TOLERANCE

NOW = 1_700_000_000.0

each_kind = pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])


def signed_by(verifier: Verifier, arrived: ReceivedRequest, *secrets: str, now: float = NOW) -> int | None:
    return verifier.signed_by(arrived, [verifier.key(secret) for secret in secrets], now)


# --------------------------------------------------------------------------------------------- published vectors


def test_githubs_own_example() -> None:
    """docs.github.com, "Validating webhook deliveries"."""
    arrived = ReceivedRequest(
        {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
        b"Hello, World!",
    )
    secret = "It's a Secret to Everybody"
    assert signed_by(todoku.github(secrets=[secret]), arrived, secret) == 0


def test_slacks_own_example() -> None:
    """docs.slack.dev, "Verifying requests from Slack"."""
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    arrived = ReceivedRequest(
        {
            "x-slack-request-timestamp": "1531420618",
            "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
        },
        body,
    )
    secret = "8f742231b10e8888abcd99yyyzzz85a5"
    assert signed_by(todoku.slack(secrets=[secret]), arrived, secret, now=1531420618 + 60) == 0


def test_the_example_of_standard_webhooks() -> None:
    """The specification's reference libraries; by Svix's names of the headers, too."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    for spelling in ("webhook", "svix"):
        arrived = ReceivedRequest(
            {
                f"{spelling}-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
                f"{spelling}-timestamp": "1614265330",
                f"{spelling}-signature": f"v1a,bm90IG91cnM= {signature}",
            },
            b'{"test": 2432232314}',
        )
        assert signed_by(todoku.standard_webhooks(secrets=[secret]), arrived, secret, now=1614265330) == 0


def test_shopify_signs_as_openssl_does() -> None:
    """Shopify publishes no vector, but how to make one: HMAC-SHA256 of the body, in base64."""
    body = event()
    made = subprocess.run(
        f"openssl dgst -sha256 -hmac {SECRET} -binary | base64",
        shell=True,
        input=body,
        stdout=subprocess.PIPE,
        check=True,
    )
    arrived = ReceivedRequest({"x-shopify-hmac-sha256": made.stdout.decode().strip()}, body)
    assert signed_by(todoku.shopify(secrets=[SECRET]), arrived, SECRET) == 0


def test_what_we_take_from_stripe_its_library_takes_too() -> None:
    stripes = KINDS[0]
    arrived = stripes.arrived(event())
    stripe.Webhook.construct_event(arrived.body, arrived.headers["stripe-signature"], SECRET)  # type: ignore[no-untyped-call]
    assert stripes.verifier().signed_by(arrived, stripes.keys(), _sent(arrived)) == 0


def _sent(arrived: ReceivedRequest) -> float:
    return float(arrived.headers["stripe-signature"].split(",")[0][2:])


# ------------------------------------------------------------------------------------------------- what is refused


@each_kind
def test_one_flipped_bit_anywhere_is_refused(kind: Kind) -> None:
    """In each byte of the body, and of whatever header the signature or its time is in."""
    arrived = kind.arrived(event(), at=NOW)
    verifier, keys = kind.verifier(), kind.keys()
    assert verifier.signed_by(arrived, keys, NOW) == 0
    for place in range(len(arrived.body)):
        for bit in (0x01, 0x20):
            changed = bytearray(arrived.body)
            changed[place] ^= bit
            assert verifier.signed_by(ReceivedRequest(arrived.headers, bytes(changed)), keys, NOW) is None
    proofs = {kind.signature, "x-slack-request-timestamp", "webhook-id", "webhook-timestamp", "x-sent-at"}
    for name in proofs & arrived.headers.keys():
        value = arrived.headers[name].split(",v0=")[0]  # another scheme than ours is nothing that we compare
        for place, character in enumerate(value):
            for bit in (0x01, 0x20):
                flipped = value[:place] + chr(ord(character) ^ bit) + value[place + 1 :]
                headers = {**arrived.headers, name: flipped}
                assert verifier.signed_by(ReceivedRequest(headers, arrived.body), keys, NOW) is None, flipped


@each_kind
def test_a_missing_or_empty_signature_is_refused(kind: Kind) -> None:
    arrived = kind.arrived(event(), at=NOW)
    for value in (None, "", " ", "=", ",", "v1", "v1=", "sha256=", "v0=", "v1,", "\xff" * 10, "," * 5000):
        headers = {name: text for name, text in arrived.headers.items() if name != kind.signature}
        if value is not None:
            headers[kind.signature] = value
        assert kind.verifier().signed_by(ReceivedRequest(headers, arrived.body), kind.keys(), NOW) is None
    assert kind.verifier().signed_by(ReceivedRequest({}, b""), kind.keys(), NOW) is None


@pytest.mark.parametrize("kind", TIMED, ids=[kind.name for kind in TIMED])
def test_a_time_too_far_from_now_is_refused_either_way(kind: Kind) -> None:
    verifier, keys = kind.verifier(), kind.keys()
    for off, fine in (
        (0, True),
        (-TOLERANCE, True),
        (TOLERANCE, True),
        (-TOLERANCE - 1, False),
        (TOLERANCE + 1, False),
    ):
        arrived = kind.arrived(event(), at=NOW + off)
        assert (verifier.signed_by(arrived, keys, NOW) == 0) is fine, off


def test_the_id_of_a_standard_webhook_holds_no_dot() -> None:
    """Else what was signed could be read in two ways: a body that begins with a time, or an id that ends with one."""
    standard = KINDS[4]
    whole = standard.arrived(f"{int(NOW)}.{{}}".encode(), at=NOW, id="msg_1")
    shifted = ReceivedRequest(
        {**whole.headers, "webhook-id": f"msg_1.{int(NOW)}", "webhook-timestamp": str(int(NOW))}, b"{}"
    )
    assert standard.verifier().signed_by(whole, standard.keys(), NOW) == 0
    assert standard.verifier().signed_by(shifted, standard.keys(), NOW) is None


# ------------------------------------------------------------------------------------------------- many secrets


@each_kind
def test_each_secret_in_use_is_tried(kind: Kind) -> None:
    """While one is replaced by another both are good, and it is known which of them signed."""
    for place in (0, 1):
        arrived = kind.arrived(event(), secret=place, at=NOW)
        assert kind.verifier().signed_by(arrived, kind.keys(), NOW) == place


def test_each_of_several_signatures_is_tried() -> None:
    """Stripe and Standard Webhooks sign with the old and with the new secret while one is rolled."""
    stripes, standard = KINDS[0], KINDS[4]
    for place in (0, 1):
        ours = stripes.arrived(event(), secret=place, at=NOW).headers["stripe-signature"].split(",")[1]
        header = f"t={int(NOW)},v1={'0' * 64},{ours}"
        assert (
            stripes.verifier().signed_by(ReceivedRequest({"stripe-signature": header}, event()), stripes.keys(), NOW)
            == place
        )
    both = standard.arrived(event(), at=NOW)
    headers = {**both.headers, "webhook-signature": f"v1,AAAA {both.headers['webhook-signature']}"}
    assert standard.verifier().signed_by(ReceivedRequest(headers, both.body), standard.keys(), NOW) == 0


def test_of_very_many_signatures_only_some_are_looked_at() -> None:
    stripes = KINDS[0]
    ours = stripes.arrived(event(), at=NOW).headers["stripe-signature"].split(",")[1]
    many = ",".join([f"t={int(NOW)}", *["v1=0"] * MOST_SIGNATURES, ours])
    assert (
        stripes.verifier().signed_by(ReceivedRequest({"stripe-signature": many}, event()), stripes.keys(), NOW) is None
    )


# ------------------------------------------------------------------------------------------------------ identities


def test_each_source_says_what_it_calls_an_event() -> None:
    body: dict[str, Any] = {
        "id": "evt_1", "type": "charge.refunded", "event_id": "Ev1", "event": {"type": "app_mention"},
    }  # fmt: skip
    headers = {
        "x-github-delivery": "72d3162e", "x-github-event": "push",
        "x-shopify-webhook-id": "b54557e4", "x-shopify-topic": "orders/create", "webhook-id": "msg_1",
    }  # fmt: skip
    arrived = ReceivedRequest(headers, b"")
    said = [kind.verifier().identity(arrived, body) for kind in KINDS]
    assert said == [
        Identity("evt_1", "charge.refunded"),
        Identity("72d3162e", "push"),
        Identity("Ev1", "app_mention"),
        Identity("b54557e4", "orders/create"),
        Identity("msg_1", "charge.refunded"),
        Identity("evt_1", "charge.refunded"),
    ]


def test_slacks_challenge_is_no_event() -> None:
    asked = {"type": "url_verification", "challenge": "3eZbrw1a", "token": "x"}
    assert todoku.slack(secrets=[SECRET]).identity(ReceivedRequest({}, b""), asked) == Challenge("3eZbrw1a")


@each_kind
def test_an_event_without_an_id_is_refused_and_told_where_it_was_looked_for(kind: Kind) -> None:
    for body in ({}, [], "text", None, {"id": "", "event_id": ""}, {"id": "a\nb", "event_id": "a\nb"}, {"id": True}):
        with pytest.raises(todoku.InvalidMessage, match="id"):
            kind.verifier().identity(ReceivedRequest({}, b""), body)


def test_the_id_of_a_generic_source_may_be_anywhere() -> None:
    deep = todoku.hmac(secrets=[SECRET], header="x", id="data.0.uuid", type="meta.kind")
    assert deep.identity(ReceivedRequest({}, b""), {"data": [{"uuid": 7}], "meta": {"kind": "a"}}) == Identity("7", "a")
    header = todoku.hmac(secrets=[SECRET], header="x", id_header="X-Id")
    assert header.identity(ReceivedRequest({"x-id": "9"}, b""), {}) == Identity("9")


# -------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize("secrets", [[], "whsec_x", [""], [" x"], [7], None, [b"x"]])
def test_secrets_that_cannot_be_are_refused_where_they_are_given(secrets: Any) -> None:
    with pytest.raises(todoku.InvalidSetting, match="secrets"):
        todoku.stripe(secrets=secrets)


def test_a_secret_of_standard_webhooks_must_be_base64() -> None:
    with pytest.raises(todoku.InvalidSetting, match="whsec_"):
        todoku.standard_webhooks(secrets=["whsec_no base64!"])


@pytest.mark.parametrize(
    "options",
    [{"header": "two words"}, {"header": "x", "algorithm": "md5"}, {"header": "x", "encoding": "base32"},
     {"header": "x", "id": "a..b"}, {"header": "x", "id_header": "x\ny"}, {"header": "x", "keep": ["a b"]}],
)  # fmt: skip
def test_options_of_a_generic_source_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(todoku.InvalidSetting):
        todoku.hmac(secrets=[SECRET], **options)


@each_kind
def test_no_secret_is_read_off_a_verifier(kind: Kind) -> None:
    shown = repr(kind.verifier())
    assert SECRET not in shown
    assert OLD not in shown
    assert "whsec" not in shown
    assert "2 secrets" in shown
