"""Providers of secrets that are servers: AWS Secrets Manager, Google Secret Manager, HashiCorp Vault.

Each takes the path of an id, `#field` behind it chooses a field, and reads the server's own environment variables.
Errors name the path and say what to do; they contain nothing that a server answered.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.message import Message
from functools import cache
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from todoku.core.failure import DeliveryError

TIMEOUT: Final = 5.0
"""Seconds for one request to a server of secrets."""

_LARGEST: Final = 1 << 20
S = TypeVar("S", bound=msgspec.Struct)


def _failed(reason: str, provider: str, path: str, what: str) -> DeliveryError:
    return DeliveryError(reason, f"{provider}:{path}: {what}")


def _not_installed(provider: str, path: str, library: str) -> DeliveryError:
    what = f'needs {library}, which is not installed: pip install "todoku[{provider}]"'
    return _failed("SECRET_UNAVAILABLE", provider, path, what)


def _field_of(text: str, field: str, provider: str, path: str) -> str:
    """Returns the secret itself, or with `#field` that field of the JSON object which it must be."""
    if not field:
        return text
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = None
    return _chosen(found, field, provider, path)


def _chosen(fields: object, field: str, provider: str, path: str) -> str:
    if not isinstance(fields, dict) or not fields:
        raise _failed("SECRET_NOT_FOUND", provider, path, "it has no fields: leave out #field, or store a JSON object")
    if not field and len(fields) > 1:
        raise _failed("SECRET_NOT_FOUND", provider, path, f"it has {len(fields)} fields: name one, as #password")
    value = fields.get(field) if field else next(iter(fields.values()))
    if value is None:
        raise _failed("SECRET_NOT_FOUND", provider, path, "it has no field of that name")
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# ------------------------------------------------------------
# HTTP, as two of them need it: one request, no redirects, because a redirect would be sent the token.


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follows no redirect: the status 3xx is the answer."""


class HttpAnswer(msgspec.Struct, frozen=True):
    """The answer of a server, with the names that google-auth reads. `data`: its body."""

    status: int
    data: bytes
    headers: Mapping[str, str]

    def read(self, kind: type[S]) -> S | None:
        """Returns the JSON of the body as this kind; None if it is something else."""
        try:
            return msgspec.json.decode(self.data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None


def ask(
    url: str, headers: Mapping[str, str], *, method: str = "GET", body: bytes | None = None,
    timeout: float = TIMEOUT, certificates: str | None = None,
) -> HttpAnswer:  # fmt: skip
    """Makes one HTTP request and returns its answer, whatever its status. OSError: there is no answer."""
    if not url.startswith(("http://", "https://")):
        raise ConnectionError("the address does not begin with http:// or https://")
    verifying = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=certificates))
    opener = urllib.request.build_opener(_NoRedirect, verifying)
    request = urllib.request.Request(url, body, dict(headers), method=method)  # noqa: S310 - the scheme is checked above
    try:
        with opener.open(request, timeout=timeout) as response:
            return HttpAnswer(response.status, response.read(_LARGEST), _lower(response.headers))
    except urllib.error.HTTPError as error:
        with error:
            return HttpAnswer(error.code, error.read(_LARGEST), _lower(error.headers))
    except HTTPException as error:  # it does not speak HTTP
        raise ConnectionError(type(error).__name__) from None


def _lower(headers: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


# ------------------------------------------------------------
# HashiCorp Vault, and OpenBao, which has the same interface: key/value engine, version 2.

_KUBERNETES_TOKEN: Final = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 - a path


class _VaultFields(msgspec.Struct, frozen=True):
    data: dict[str, Any] | None


class _VaultSecret(msgspec.Struct, frozen=True):
    data: _VaultFields


class _VaultToken(msgspec.Struct, frozen=True):
    client_token: str


class _VaultLogin(msgspec.Struct, frozen=True):
    auth: _VaultToken


def resolve_vault(path: str) -> str:
    """Resolves `vault:MOUNT/PATH#FIELD` by VAULT_ADDR and VAULT_TOKEN, an AppRole, or a Kubernetes role."""
    place, _, field = path.partition("#")
    mount, slash, name = place.partition("/")
    if not slash or not name:
        raise _failed("SECRET_NOT_FOUND", "vault", path, "write the mount first, as in vault:secret/shop/db#password")
    try:
        answer = _ask_vault(f"{quote(mount)}/data/{quote(name)}", {"X-Vault-Token": _vault_token(path)})
    except OSError as error:
        what = f"Vault does not answer ({type(error).__name__}): check VAULT_ADDR and VAULT_CACERT"
        raise _failed("SECRET_UNAVAILABLE", "vault", path, what) from None
    match answer.status:
        case 200:
            found = answer.read(_VaultSecret)
            return _chosen(found and found.data.data, field, "vault", path)
        case 403:
            what = "Vault denies it: the token has ended, or its policy does not allow to read this path"
            raise _failed("SECRET_DENIED", "vault", path, what)
        case 404:
            what = "Vault has no such secret: check the path, and that the mount has version 2 of the key/value engine"
            raise _failed("SECRET_NOT_FOUND", "vault", path, what)
        case status:
            raise _failed("SECRET_UNAVAILABLE", "vault", path, f"Vault answers with status {status}: `vault status`")


def _ask_vault(path: str, headers: Mapping[str, str], body: object = None) -> HttpAnswer:
    address = os.environ.get("VAULT_ADDR", "https://127.0.0.1:8200").rstrip("/")
    namespace = os.environ.get("VAULT_NAMESPACE")
    return ask(
        f"{address}/v1/{path}",
        {**headers, "X-Vault-Request": "true", **({"X-Vault-Namespace": namespace} if namespace else {})},
        method="GET" if body is None else "POST",
        body=None if body is None else msgspec.json.encode(body),
        certificates=os.environ.get("VAULT_CACERT"),
    )


def _vault_token(path: str) -> str:
    """Returns VAULT_TOKEN, else the token of a login by AppRole or Kubernetes, else the one that `vault login` left."""
    if token := os.environ.get("VAULT_TOKEN", "").strip():
        return token
    if role := os.environ.get("VAULT_ROLE_ID"):
        return _log_in("approle", {"role_id": role, "secret_id": os.environ.get("VAULT_SECRET_ID", "")}, path)
    if role := os.environ.get("VAULT_K8S_ROLE"):
        return _log_in("kubernetes", {"role": role, "jwt": Path(_KUBERNETES_TOKEN).read_text("utf-8")}, path)
    left = Path.home() / ".vault-token"
    if left.is_file() and (token := left.read_text("utf-8").strip()):
        return token
    what = "there is no token for Vault: set VAULT_TOKEN, VAULT_ROLE_ID with VAULT_SECRET_ID, or VAULT_K8S_ROLE"
    raise _failed("SECRET_DENIED", "vault", path, what)


def _log_in(method: str, credentials: Mapping[str, str], path: str) -> str:
    answer = _ask_vault(f"auth/{method}/login", {}, credentials)
    login = answer.read(_VaultLogin) if answer.status == 200 else None
    if login is None:
        what = f"the {method} login was refused with status {answer.status}: check the role and its credentials"
        raise _failed("SECRET_DENIED", "vault", path, what)
    return login.auth.client_token


# ------------------------------------------------------------
# Google Secret Manager, over its REST interface. google-auth finds the credentials.

_GOOGLE: Final = "https://secretmanager.googleapis.com"
_ENDPOINT: Final = "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER"
"""gcloud's own variable: the address of a regional endpoint, or of a server in a test."""


class _GooglePayload(msgspec.Struct, frozen=True):
    data: str = ""


class _GoogleSecret(msgspec.Struct, frozen=True):
    payload: _GooglePayload


def resolve_gcp(path: str) -> str:
    """Resolves `gcp:PROJECT/SECRET`, or `gcp:PROJECT/SECRET/VERSION#FIELD`, by Google's default credentials."""
    place, _, field = path.partition("#")
    parts = place.split("/")
    if len(parts) not in (2, 3) or not all(parts):
        raise _failed("SECRET_NOT_FOUND", "gcp", path, "write gcp:PROJECT/SECRET or gcp:PROJECT/SECRET/VERSION")
    project, secret, version = (*parts, "latest")[:3]
    base = os.environ.get(_ENDPOINT, _GOOGLE).rstrip("/")
    url = f"{base}/v1/projects/{quote(project)}/secrets/{quote(secret)}/versions/{quote(version)}:access"
    try:
        answer = ask(url, _google_headers(url, path))
    except OSError as error:
        what = f"Google does not answer ({type(error).__name__}): check the network and {_ENDPOINT}"
        raise _failed("SECRET_UNAVAILABLE", "gcp", path, what) from None
    match answer.status:
        case 200:
            return _field_of(_google_text(answer, path), field, "gcp", path)
        case 401 | 403:
            what = "Google denies it: the account needs the role roles/secretmanager.secretAccessor"
            raise _failed("SECRET_DENIED", "gcp", path, what)
        case 404:
            what = "there is no such secret or version: check project, name and version"
            raise _failed("SECRET_NOT_FOUND", "gcp", path, what)
        case status:
            raise _failed("SECRET_UNAVAILABLE", "gcp", path, f"Google answers with status {status}")


def _google_text(answer: HttpAnswer, path: str) -> str:
    found = answer.read(_GoogleSecret)
    try:
        return "" if found is None else base64.b64decode(found.payload.data, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise _failed("SECRET_NOT_FOUND", "gcp", path, "its value is not text in UTF-8") from None


def _google_headers(url: str, path: str) -> dict[str, str]:
    try:
        exceptions = import_module("google.auth.exceptions")
    except ImportError:
        raise _not_installed("gcp", path, "google-auth") from None
    headers: dict[str, str] = {}
    try:
        _google_credentials().before_request(_google_transport(), "GET", url, headers)
    except exceptions.GoogleAuthError as error:
        what = f"there are no usable credentials ({type(error).__name__}): set GOOGLE_APPLICATION_CREDENTIALS"
        raise _failed("SECRET_DENIED", "gcp", path, what) from None
    return headers


@cache
def _google_credentials() -> Any:
    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
    credentials, _project = import_module("google.auth").default(scopes=scopes, request=_google_transport())
    return credentials


def _google_transport() -> Any:
    """Returns what google-auth makes requests with. Its own transports need requests, aiohttp or urllib3."""
    exceptions = import_module("google.auth.exceptions")

    def request(
        url: str, method: str = "GET", body: bytes | str | None = None, headers: Mapping[str, str] | None = None,
        timeout: float | None = None, **_: Any,
    ) -> HttpAnswer:  # fmt: skip
        data = body.encode() if isinstance(body, str) else body
        try:
            return ask(url, headers or {}, method=method, body=data, timeout=timeout or TIMEOUT)
        except OSError as error:
            raise exceptions.TransportError(type(error).__name__) from None

    return request


# ------------------------------------------------------------
# AWS Secrets Manager. botocore finds the credentials, and signs.


def resolve_aws(path: str) -> str:
    """Resolves `aws:NAME#FIELD`, or the ARN of a secret, by AWS's default credentials."""
    name, _, field = path.partition("#")
    try:
        exceptions = import_module("botocore.exceptions")
    except ImportError:
        raise _not_installed("aws", path, "botocore") from None
    try:
        answer = _aws_client(_region(name)).get_secret_value(SecretId=name)
    except exceptions.ClientError as error:
        raise _refused_by_aws(str(error.response.get("Error", {}).get("Code", "")), path) from None
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.NoRegionError) as error:
        what = f"{type(error).__name__}: set AWS_REGION, and credentials as for the aws command"
        raise _failed("SECRET_DENIED", "aws", path, what) from None
    except (exceptions.BotoCoreError, OSError) as error:
        what = f"AWS does not answer ({type(error).__name__}): check the network and AWS_REGION"
        raise _failed("SECRET_UNAVAILABLE", "aws", path, what) from None
    text = answer.get("SecretString")
    if text is None:
        raise _failed("SECRET_NOT_FOUND", "aws", path, "its value is binary: store it as text")
    return _field_of(str(text), field, "aws", path)


def _refused_by_aws(code: str, path: str) -> DeliveryError:
    match code:
        case "ResourceNotFoundException":
            what = "AWS has no such secret in this account and region: check the name and AWS_REGION"
            return _failed("SECRET_NOT_FOUND", "aws", path, what)
        case "ValidationException" | "InvalidParameterException" | "InvalidRequestException":
            return _failed("SECRET_NOT_FOUND", "aws", path, f"AWS refuses it ({code}): check the name; is it deleted?")
        case "ThrottlingException" | "InternalServiceError":
            return _failed("SECRET_UNAVAILABLE", "aws", path, f"AWS answers with {code}")
        case _:
            what = f"AWS denies it ({code}): the role needs secretsmanager:GetSecretValue, and kms:Decrypt for its key"
            return _failed("SECRET_DENIED", "aws", path, what)


def _region(name: str) -> str | None:
    """Returns the region of an ARN, or AWS_REGION, which botocore does not read; None: botocore's own configuration."""
    parts = name.split(":")
    if parts[0] == "arn" and len(parts) > 3 and parts[3]:
        return parts[3]
    return os.environ.get("AWS_REGION") or None


@cache
def _aws_client(region: str | None) -> Any:
    config = import_module("botocore.config").Config(
        connect_timeout=TIMEOUT, read_timeout=TIMEOUT, retries={"total_max_attempts": 2}
    )
    session = import_module("botocore.session").get_session()
    return session.create_client("secretsmanager", region_name=region, config=config)
