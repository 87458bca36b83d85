"""Receivers that are slow, broken or mean: each attempt ends in its time, and costs no more than it may."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import threading
from pathlib import Path

import pytest

from tests.destinations.http.conftest import outgoing, send
from tests.destinations.http.receiving import Received, Receiver, Reply, answer, raw, receiving, reset, silent
from tests.support.crew import until
from tests.support.ports import free_port
from todoku.core.outcome import KEPT_BODY_BYTES, KEPT_HEADER_BYTES, Abort, Done, Outcome, Retry

OK = b"HTTP/1.1 200 OK\r\n"


def reason(outcome: Outcome) -> str:
    assert isinstance(outcome, Retry), outcome
    return outcome.reason


SLOW: list[tuple[str, Reply]] = [
    ("never answers", silent),
    ("sends its headers for ever", raw(OK, again=b"X-A: 1\r\n", pause=0.02)),
    ("sends its body for ever", raw(OK + b"Content-Length: 1000000\r\n\r\n", again=b"x", pause=0.02)),
    ("sends a chunk now and then", raw(OK + b"Transfer-Encoding: chunked\r\n\r\n", again=b"1\r\nx\r\n", pause=0.02)),
    ("keeps us waiting with 103", raw(b"", again=b"HTTP/1.1 103 Early Hints\r\n\r\n", pause=0.02)),
]


@pytest.mark.parametrize("reply", [reply for _, reply in SLOW], ids=[name for name, _ in SLOW])
def test_one_deadline_holds_from_the_look_up_to_the_last_byte(receiver: Receiver, reply: Reply) -> None:
    """Issue 6: whatever trickles in does not make it longer; the receiver had one request."""
    receiver.reply = reply
    (outcome,) = send(outgoing(receiver.url, timeout=1.5))
    assert reason(outcome) in ("HTTP_TIMEOUT", "HTTP_BAD_ANSWER")
    until(lambda: receiver.received, what="its request")
    assert len(receiver.received) == 1


def test_a_look_up_that_takes_for_ever_is_under_the_deadline_too() -> None:
    async def never(_host: str, _port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    (outcome,) = send(outgoing("http://slow.example/", timeout=0.3), look_up=never)
    assert reason(outcome) == "HTTP_TIMEOUT"


def test_a_handshake_that_never_ends_is_under_the_deadline_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        (outcome,) = send(outgoing(f"https://127.0.0.1:{listening.getsockname()[1]}/", timeout=0.3))
    assert reason(outcome) == "HTTP_TIMEOUT"


def test_a_slow_receiver_gets_exactly_one_request(receiver: Receiver) -> None:
    """S4: one that answers within the deadline, however slowly, is asked once."""

    async def slowly(request: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1)
        await answer(200)(request, writer)

    receiver.reply = slowly
    assert send(outgoing(receiver.url)) == [Done()]
    assert len(receiver.received) == 1


def test_of_an_endless_answer_only_the_beginning_is_read(receiver: Receiver) -> None:
    """§3: 64 KiB are read, 16 KiB kept, and the connection is cut: its status counts."""
    receiver.reply = raw(OK + b"Transfer-Encoding: chunked\r\n\r\n", again=b"1000\r\n" + b"x" * 4096 + b"\r\n")
    (outcome,) = send(outgoing(receiver.url, timeout=60, callback={"url": "https://a.example"}))
    assert isinstance(outcome, Done)
    assert outcome.response is not None
    assert outcome.response.body == b"x" * KEPT_BODY_BYTES
    until(lambda: receiver.closed == 1, what="the end of the connection")


def test_a_gzip_bomb_stays_packed(receiver: Receiver) -> None:
    """§3: nobody asked for it, and nothing unpacks it."""
    bomb = gzip.compress(b"\0" * (8 << 20))
    receiver.reply = answer(500, bomb, content_encoding="gzip")
    (outcome,) = send(outgoing(receiver.url))
    assert isinstance(outcome, Retry)
    assert outcome.response is not None
    assert outcome.response.body == bomb[:KEPT_BODY_BYTES]
    assert receiver.received[0].value("Accept-Encoding") == "identity"


def test_of_many_headers_so_many_are_kept(receiver: Receiver) -> None:
    """But all of them are heard: the one that decides may be the last."""
    many = {f"x_{number}": "v" * 1000 for number in range(50)}
    receiver.reply = answer(489, **many, upstash_nonretryable_error="true")
    (outcome,) = send(outgoing(receiver.url))
    assert isinstance(outcome, Abort)
    assert outcome.response is not None
    assert 5 <= len(outcome.response.headers) <= KEPT_HEADER_BYTES // 1000 + 1


BROKEN: list[tuple[str, Reply, str]] = [
    ("a header without end", raw(OK + b"X-A: " + b"a" * 100_000 + b"\r\n\r\n"), "HTTP_BAD_ANSWER"),
    ("thousands of headers", raw(OK + b"X-A: 1\r\n" * 5000 + b"\r\n"), "HTTP_BAD_ANSWER"),
    ("not HTTP", raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), "HTTP_BAD_ANSWER"),
    ("half an answer", raw(OK + b"Content-Length: 100\r\n\r\nabc"), "HTTP_BAD_ANSWER"),
    ("two lengths", raw(OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"), "HTTP_BAD_ANSWER"),
    ("nothing", raw(b""), "NETWORK"),
    ("a reset", reset, "NETWORK"),
]


@pytest.mark.parametrize(("reply", "why"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_what_is_no_answer_is_tried_again(receiver: Receiver, reply: Reply, why: str) -> None:
    receiver.reply = reply
    (outcome,) = send(outgoing(receiver.url, timeout=60))
    assert reason(outcome) == why
    assert len(receiver.received) == 1


def test_who_is_not_there_has_reasons_of_its_own() -> None:
    """Issue 6 (outpost#314): a name that cannot be looked up is tried again, as a port where nobody listens."""
    missing, refused = send(outgoing("http://nobody.invalid/"), outgoing(f"http://127.0.0.1:{free_port()}/"))
    assert (reason(missing), reason(refused)) == ("HTTP_DNS", "NETWORK")


def test_a_private_address_is_refused_for_good(receiver: Receiver) -> None:
    """§3: by default nothing is sent to this machine or its network."""
    for url in (receiver.url, f"http://localhost:{receiver.port}/"):
        (outcome,) = send(outgoing(url), http_loopback=False)
        assert isinstance(outcome, Abort)
        assert outcome.reason == "SSRF_REFUSED"
    assert not receiver.connections


# ------------------------------------------------------------------------------------------------------------- TLS


def certificate(folder: Path, name: str) -> Path:
    """A self-signed certificate of a name, with its key."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = folder / f"{name}.pem"
    file.write_bytes(secret + made.public_bytes(pem))
    return file


async def here(_host: str, _port: int) -> list[str]:
    return ["127.0.0.1"]


def serving(file: Path, names: list[str | None]) -> ssl.SSLContext:
    """A server's TLS with this certificate; it notes for which name it was asked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    context.sni_callback = lambda _socket, name, _context: names.append(name)  # type: ignore[assignment,misc]
    return context


def test_the_pinned_address_is_asked_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """§3: the connection goes to the judged address; Host, SNI and the certificate are those of the name."""
    names: list[str | None] = []
    file = certificate(tmp_path, "hooks.example")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with receiving(tls=serving(file, names)) as receiver:
        assert send(outgoing(f"https://hooks.example:{receiver.port}/x"), look_up=here) == [Done()]
        assert names == ["hooks.example"]
        assert receiver.received[0].value("Host") == f"hooks.example:{receiver.port}"


@pytest.mark.parametrize(("trusted", "asked"), [(False, "hooks.example"), (True, "other.example")])
def test_a_certificate_that_is_not_trusted_or_not_its_own_gets_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool, asked: str
) -> None:
    """§3: TLS is always verified; there is no switch."""
    file = certificate(tmp_path, "hooks.example")
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with receiving(tls=serving(file, [])) as receiver:
        (outcome,) = send(outgoing(f"https://{asked}:{receiver.port}/"), look_up=here)
        assert reason(outcome) == "HTTP_TLS"
        assert not receiver.received


def test_https_to_a_server_without_tls_is_a_failure_of_tls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def plainly() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=plainly)
        thread.start()
        (outcome,) = send(outgoing(f"https://127.0.0.1:{listening.getsockname()[1]}/", timeout=60))
        thread.join()
    assert reason(outcome) == "HTTP_TLS"
