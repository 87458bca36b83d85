"""Servers of secrets for the tests: moto for AWS, and one each that answers as Vault (KV version 2) and as Google does.

Neither Vault nor an emulator of Google's Secret Manager can be had from a package index.
"""

from __future__ import annotations

import base64
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.services import SqsServer, running

TOKEN = "hvs.the-token-of-a-test"
ACCESS = "ya29.the-token-of-a-test"


class SecretServer(ABC):
    """One kind of server. `put` stores a secret of one field and returns how settings name it."""

    provider: ClassVar[str]
    environ: dict[str, str]

    @abstractmethod
    def put(self, name: str, value: str) -> str:
        """Stores it, and returns `secret://…`."""

    @abstractmethod
    def absent(self) -> str:
        """The name of a secret that is not there."""

    @abstractmethod
    def denied(self) -> dict[str, str]:
        """An environment with which the server gives nothing away."""

    @abstractmethod
    def away(self) -> dict[str, str]:
        """An environment that names a port where nothing listens."""


class _Answering(ABC, BaseHTTPRequestHandler):
    """Answers by `answer`, and says nothing on standard error."""

    @abstractmethod
    def answer(self, path: str, body: bytes) -> tuple[int, object]:
        """The status and the JSON of the answer to one request."""

    def do_GET(self) -> None:
        status, found = self.answer(unquote(self.path), self.rfile.read(int(self.headers.get("Content-Length", 0))))
        text = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        return


@contextmanager
def _serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Vault(SecretServer):
    """What a Vault in development mode answers for `secret/`, and for a login by AppRole."""

    provider = "vault"

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []

    def put(self, name: str, value: str) -> str:
        self.kept[f"shop/{name}"] = {"other": "no", "value": value}
        return f"secret://vault/secret/shop/{name}#value"

    def absent(self) -> str:
        return "secret://vault/secret/shop/missing#value"

    def denied(self) -> dict[str, str]:
        return {**self.environ, "VAULT_TOKEN": "hvs.ended"}

    def away(self) -> dict[str, str]:
        return {**self.environ, "VAULT_ADDR": "http://127.0.0.1:1"}

    @contextmanager
    def serving(self) -> Iterator[Vault]:
        vault = self

        class Answers(_Answering):
            def answer(self, path: str, body: bytes) -> tuple[int, object]:
                vault.asked.append(path)
                if path == "/v1/auth/approle/login":
                    right = json.loads(body) == {"role_id": "shop", "secret_id": "s.role"}
                    return (200, {"auth": {"client_token": TOKEN}}) if right else (400, {"errors": ["invalid role"]})
                if self.headers.get("X-Vault-Token") != TOKEN:
                    return 403, {"errors": ["permission denied"]}
                found = vault.kept.get(path.removeprefix("/v1/secret/data/"))
                return (404, {"errors": []}) if found is None else (200, {"data": {"data": found, "metadata": {}}})

        with _serving(Answers) as url:
            self.environ = {"VAULT_ADDR": url, "VAULT_TOKEN": TOKEN}
            yield self


class Google(SecretServer):
    """What Google answers: tokens for a service account's signed assertion, and versions of secrets."""

    provider = "gcp"

    def __init__(self, home: Path) -> None:
        self._home = home
        self._kept: dict[str, str] = {}

    def put(self, name: str, value: str) -> str:
        self._kept[f"/v1/projects/shop/secrets/{name}/versions/latest:access"] = value
        return f"secret://gcp/shop/{name}"

    def absent(self) -> str:
        return "secret://gcp/shop/missing"

    def denied(self) -> dict[str, str]:
        return {**self.environ, "GOOGLE_APPLICATION_CREDENTIALS": str(self._account("other"))}

    def away(self) -> dict[str, str]:
        return {**self.environ, "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": "http://127.0.0.1:1"}

    @contextmanager
    def serving(self) -> Iterator[Google]:
        import jwt

        google = self

        class Answers(_Answering):
            def answer(self, path: str, body: bytes) -> tuple[int, object]:
                if urlsplit(path).path == "/token":
                    asserted = parse_qs(body.decode())["assertion"][0]
                    name = jwt.decode(asserted, options={"verify_signature": False})["iss"]
                    token = ACCESS if name.startswith("shop@") else "ya29.of-another"
                    return 200, {"access_token": token, "expires_in": 3600, "token_type": "Bearer"}
                if self.headers.get("Authorization") != f"Bearer {ACCESS}":
                    return 403, {"error": {"status": "PERMISSION_DENIED"}}
                if (found := google._kept.get(path)) is None:
                    return 404, {"error": {"status": "NOT_FOUND"}}
                return 200, {"name": path, "payload": {"data": base64.b64encode(found.encode()).decode()}}

        with _serving(Answers) as url:
            self._url = url
            self.environ = {
                "GOOGLE_APPLICATION_CREDENTIALS": str(self._account("shop")),
                "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": url,
            }
            yield self

    def _account(self, name: str) -> Path:
        """The file of a service account, as Google's console writes it."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        key = rsa.generate_private_key(65537, 2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        account = {
            "type": "service_account", "project_id": "shop", "private_key_id": "1", "private_key": key.decode(),
            "client_email": f"{name}@shop.iam.gserviceaccount.com", "client_id": "1", "token_uri": f"{self._url}/token",
        }  # fmt: skip
        file = self._home / f"{name}.json"
        file.write_text(json.dumps(account), "utf-8")
        return file


class Aws(SecretServer):
    """AWS Secrets Manager, as moto plays it."""

    provider = "aws"

    def __init__(self, home: Path) -> None:
        self._home = home

    def put(self, name: str, value: str) -> str:
        self._client().create_secret(Name=f"shop/{name}", SecretString=json.dumps({"other": "no", "value": value}))
        return f"secret://aws/shop/{name}#value"

    def absent(self) -> str:
        return "secret://aws/shop/missing#value"

    def denied(self) -> dict[str, str]:
        return {name: value for name, value in self.environ.items() if not name.startswith("AWS_SECRET")}

    def away(self) -> dict[str, str]:
        return {**self.environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}

    def _client(self) -> Any:
        import botocore.session

        return botocore.session.Session().create_client(
            "secretsmanager", region_name="eu-west-1", endpoint_url=self.environ["AWS_ENDPOINT_URL"],
            aws_access_key_id="test", aws_secret_access_key="test",
        )  # fmt: skip

    @contextmanager
    def serving(self) -> Iterator[Aws]:
        with running(SqsServer, self._home) as moto:
            self.environ = {
                "AWS_ENDPOINT_URL": moto.url, "AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true", "HOME": str(self._home),
            }  # fmt: skip
            yield self


def server_of(kind: str, home: Path) -> Any:
    """The server of this kind, as a context."""
    return {"vault": Vault, "gcp": lambda: Google(home), "aws": lambda: Aws(home)}[kind]().serving()
