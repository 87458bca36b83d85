"""Signatures: the official libraries accept ours, we accept theirs, and no byte of anything signed may change."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from qstash import Receiver
from qstash.errors import SignatureError
from standardwebhooks import Webhook, WebhookVerificationError

from tests.core.making import any_text, quick
from todoku.core.errors import InvalidSetting
from todoku.core.ingest import ReceivedRequest
from todoku.core.signature import is_blank_key, upstash_signature, verify_upstash, webhook_headers, webhook_secret
from todoku.sources.standard_webhooks import StandardWebhooks

CURRENT = "sig_" + "c" * 32
NEXT = "sig_" + "n" * 32
OTHER = "sig_" + "o" * 32
URL = "https://shop.example/hooks/paid?tenant=7"
BODY = '{"amount": 1200, "note": "届く"}'.encode()
ID = "0190b6a4-7c00-7000-8000-000000000001"


def token(now: float, *, url: str = URL, body: bytes = BODY, key: str = CURRENT) -> str:
    return upstash_signature(url, body, key=key, now=now, jti="jwt_1")


def flipped(text: str) -> Iterator[str]:
    """`text` with one bit of one byte turned, for each byte; the lowest bit, which base64 may not even use."""
    for at, character in enumerate(text):
        yield text[:at] + chr(ord(character) ^ 1) + text[at + 1 :]


# ------------------------------------------------------------------------------------------------ Upstash-Signature


def test_the_official_receiver_accepts_it() -> None:
    receiver = Receiver(current_signing_key=CURRENT, next_signing_key=NEXT)
    receiver.verify(signature=token(time.time()), body=BODY.decode(), url=URL)
    receiver.verify(signature=token(time.time(), key=NEXT), body=BODY.decode(), url=URL)


def test_the_official_receiver_accepts_it_with_a_clock_half_a_minute_slow() -> None:
    """Its tolerance does nothing, so a token says that it is older than it is."""
    Receiver(CURRENT, NEXT).verify(signature=token(time.time() + 25), body=BODY.decode(), url=URL)


def test_it_says_what_the_specification_says() -> None:
    now = 1_790_000_000.9
    made = token(now)
    assert jwt.get_unverified_header(made) == {"alg": "HS256", "typ": "JWT"}
    claims = jwt.decode(made, CURRENT, algorithms=["HS256"], options={"verify_exp": False, "verify_iat": False})
    assert claims == {
        "iss": "Upstash", "sub": URL, "exp": 1_790_000_300, "nbf": 0, "iat": 1_789_999_970, "jti": "jwt_1",
        "body": base64.urlsafe_b64encode(hashlib.sha256(BODY).digest()).decode().rstrip("="),
    }  # fmt: skip


def test_each_of_the_keys_verifies() -> None:
    for key in (CURRENT, NEXT):
        assert verify_upstash(token(1000, key=key), BODY, keys=(CURRENT, NEXT), now=1000, url=URL)
    assert not verify_upstash(token(1000, key=OTHER), BODY, keys=(CURRENT, NEXT), now=1000)
    assert not verify_upstash(token(1000, key=OTHER), BODY, keys=(), now=1000)
    with pytest.raises(InvalidSetting, match="empty"):
        token(1000, key="")


def test_no_byte_of_the_token_may_change() -> None:
    for changed in flipped(token(1000)):
        assert not verify_upstash(changed, BODY, keys=(CURRENT, NEXT), now=1000), changed


def test_no_byte_of_the_body_may_change() -> None:
    made = token(1000)
    for at in range(len(BODY)):
        changed = BODY[:at] + bytes([BODY[at] ^ 1]) + BODY[at + 1 :]
        assert not verify_upstash(made, changed, keys=(CURRENT,), now=1000)
    for changed in (b"", BODY + b" ", BODY[:-1]):
        assert not verify_upstash(made, changed, keys=(CURRENT,), now=1000)


def test_no_byte_of_the_url_may_change() -> None:
    made = token(1000)
    for changed in flipped(URL):
        assert not verify_upstash(made, BODY, keys=(CURRENT,), now=1000, url=changed)
    assert verify_upstash(made, BODY, keys=(CURRENT,), now=1000), "who does not know his URL does not ask"


def test_the_official_receiver_refuses_the_same_changes() -> None:
    made, receiver = token(time.time()), Receiver(CURRENT, CURRENT)
    with pytest.raises(SignatureError, match="Invalid subject"):
        receiver.verify(signature=made, body=BODY.decode(), url=URL + "x")
    with pytest.raises(SignatureError, match="Invalid body hash"):
        receiver.verify(signature=made, body=BODY.decode() + " ", url=URL)


@pytest.mark.parametrize(
    ("now", "leeway", "good"),
    [
        (1000, 0, True),
        (1299.9, 0, True),
        (1300, 0, False),
        (1300, 5, True),
        (970, 0, True),
        (969, 0, False),
        (969, 1, True),
    ],
)
def test_it_is_good_for_five_minutes(now: float, leeway: float, good: bool) -> None:
    assert verify_upstash(token(1000), BODY, keys=(CURRENT,), now=now, leeway=leeway) is good


def claimed(**changes: object) -> str:
    """A token that is signed as it should be and says something else."""
    claims = jwt.decode(token(1000), CURRENT, algorithms=["HS256"], options={"verify_exp": False}) | changes
    kept = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(kept, CURRENT, algorithm="HS256")


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"iss": "Somebody"}, id="another issuer"),
        pytest.param({"iss": None}, id="no issuer"),
        pytest.param({"exp": None}, id="for ever"),
        pytest.param({"exp": 999}, id="over"),
        pytest.param({"nbf": 1001}, id="not yet"),
        pytest.param({"iat": 1001}, id="issued later"),
        pytest.param({"body": None}, id="of any body"),
        pytest.param({"body": ""}, id="of another body"),
        pytest.param({"sub": None}, id="for any URL"),
    ],
)
def test_a_token_that_claims_anything_else_is_refused(changed: dict[str, object]) -> None:
    assert verify_upstash(claimed(), BODY, keys=(CURRENT,), now=1000, url=URL)
    assert not verify_upstash(claimed(**changed), BODY, keys=(CURRENT,), now=1000, url=URL)


@pytest.mark.parametrize("alg", ["HS256", "none", "HS512", "RS256", ""])
def test_only_one_algorithm_is_known_however_a_token_is_signed(alg: str) -> None:
    header = base64.urlsafe_b64encode(json.dumps({"alg": alg, "typ": "JWT"}).encode()).decode().rstrip("=")
    signed = f"{header}.{token(1000).split('.')[1]}"
    digest = hmac.digest(CURRENT.encode(), signed.encode(), hashlib.sha256)
    made = f"{signed}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
    assert verify_upstash(made, BODY, keys=(CURRENT,), now=1000) is (alg == "HS256")


def test_the_padded_hash_of_other_senders_is_the_same_hash() -> None:
    padded = base64.urlsafe_b64encode(hashlib.sha256(BODY).digest()).decode()
    assert verify_upstash(claimed(body=padded), BODY, keys=(CURRENT,), now=1000)


@quick
@given(any_text)
def test_no_text_is_a_token(text: str) -> None:
    assert not verify_upstash(text, BODY, keys=(CURRENT,), now=1000)
    assert not verify_upstash(f"{text}.{text}.{text}", BODY, keys=(CURRENT,), now=1000)


# ------------------------------------------------------------------------------------------------ Standard Webhooks


def signed(now: float, *keys: str, body: bytes = BODY) -> dict[str, str]:
    return webhook_headers(ID, body, secrets=[webhook_secret(key) for key in keys or (CURRENT,)], now=now)


def verify_webhook(headers: dict[str, str], body: bytes, *, secrets: list[str], now: float) -> bool:
    """Whether our own source of Standard Webhooks accepts it."""
    verifier = StandardWebhooks(tuple(secrets))
    arrived = ReceivedRequest({name.lower(): value for name, value in headers.items()}, body)
    return verifier.signed_by(arrived, [verifier.key(secret) for secret in secrets], now) is not None


def test_the_standard_library_accepts_ours_with_either_key() -> None:
    headers = signed(time.time(), CURRENT, NEXT)
    for key in (CURRENT, NEXT):
        assert Webhook(webhook_secret(key)).verify(BODY, headers) == json.loads(BODY)
    with pytest.raises(WebhookVerificationError):
        Webhook(webhook_secret(OTHER)).verify(BODY, headers)


def test_we_accept_the_standard_librarys() -> None:
    now = time.time()
    signature = Webhook(webhook_secret(CURRENT)).sign(ID, datetime.fromtimestamp(now, UTC), BODY.decode())
    headers = {"Webhook-Id": ID, "Webhook-Timestamp": str(int(now)), "Webhook-Signature": f"v1a,AAAA {signature}"}
    assert verify_webhook(headers, BODY, secrets=[webhook_secret(NEXT), webhook_secret(CURRENT)], now=now)
    assert not verify_webhook(headers, BODY, secrets=[webhook_secret(NEXT)], now=now)
    assert not verify_webhook(headers, BODY, secrets=[], now=now)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_no_byte_of_the_headers_may_change(name: str) -> None:
    headers = signed(1000)
    for changed in (*flipped(headers[name]), "", headers[name] + "0"):
        assert not verify_webhook(headers | {name: changed}, BODY, secrets=[webhook_secret(CURRENT)], now=1000), changed
    without = {other: value for other, value in headers.items() if other != name}
    assert not verify_webhook(without, BODY, secrets=[webhook_secret(CURRENT)], now=1000)


def test_no_byte_of_a_webhooks_body_may_change() -> None:
    headers = signed(1000)
    for at in range(len(BODY)):
        changed = BODY[:at] + bytes([BODY[at] ^ 1]) + BODY[at + 1 :]
        assert not verify_webhook(headers, changed, secrets=[webhook_secret(CURRENT)], now=1000)


@pytest.mark.parametrize(("now", "good"), [(1000, True), (1300, True), (1301, False), (700, True), (699, False)])
def test_an_old_webhook_and_one_from_the_future_are_refused(now: float, good: bool) -> None:
    assert verify_webhook(signed(1000), BODY, secrets=[webhook_secret(CURRENT)], now=now) is good


def test_the_dot_between_id_and_timestamp_cannot_be_moved() -> None:
    """What is signed is id.timestamp.body: an id with a dot would let two readings have one signature."""
    headers = signed(1000, body=b"1000.x")
    moved = headers | {"webhook-id": f"{ID}.1000", "webhook-timestamp": "1000"}
    assert not verify_webhook(moved, b"x", secrets=[webhook_secret(CURRENT)], now=1000)


@pytest.mark.parametrize("id", ["", "a.b", "a b", "a\n", "ä", "a" * 257])
def test_an_id_that_cannot_be_signed_is_refused(id: str) -> None:
    with pytest.raises(InvalidSetting, match="webhook-id"):
        webhook_headers(id, BODY, secrets=[webhook_secret(CURRENT)], now=1000)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_***", "whsec_é", "whsec_A"])
def test_a_secret_that_is_none_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(InvalidSetting, match="secret") as refused:
        webhook_headers(ID, BODY, secrets=[secret], now=1000)
    assert "***" not in str(refused.value)


def test_nothing_is_sent_unsigned() -> None:
    with pytest.raises(InvalidSetting, match="at least one secret"):
        webhook_headers(ID, BODY, secrets=[], now=1000)


@quick
@given(st.binary(max_size=200), st.binary(min_size=1, max_size=64).filter(lambda key: not is_blank_key(key)))
def test_any_bytes_and_any_secret_verify_again(body: bytes, key: bytes) -> None:
    for secret in (f"whsec_{base64.b64encode(key).decode()}", base64.b64encode(key).decode().rstrip("=")):
        assert verify_webhook(webhook_headers(ID, body, secrets=[secret], now=5), body, secrets=[secret], now=5)
