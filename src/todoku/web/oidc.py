"""Sign-in through an OpenID provider: the code flow with PKCE, state and nonce. Authlib speaks the protocol."""

from __future__ import annotations

import base64
import time
import warnings
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request

from todoku.api.problem import Refused
from todoku.core.errors import InvalidSetting
from todoku.core.msgspec_warmup import warm_up
from todoku.core.oidc import name_of_claims, role_of_claims, role_rules
from todoku.core.settings import Settings
from todoku.engine.observability.log import Log
from todoku.engine.sign_in.form_key import FormKey
from todoku.store.sessions import Person

LASTS: Final = 600
"""Seconds in which a person has to come back from the provider."""

_METADATA_SECONDS: Final = 3600.0
_TIMEOUT: Final = 10.0
_PURPOSE: Final = "oidc"
_MOST: Final = 4096


class Departure(msgspec.Struct, frozen=True):
    """What the browser keeps, signed, while the person is at the provider."""

    state: str
    nonce: str
    verifier: str
    next: str
    until: float


warm_up(Departure)


class OidcSignIn:
    """Sends people to the provider, and says who came back. For one event loop only."""

    def __init__(self, settings: Settings, key: FormKey) -> None:
        if settings.oidc_issuer is None:
            raise InvalidSetting("oidc_issuer is not set", hint="set TODOKU_OIDC_ISSUER")
        self._settings, self._key = settings, key
        self._issuer: Final = settings.oidc_issuer.rstrip("/")
        self._rules = role_rules(settings.oidc_roles)
        self._client, self._until = _create_client(settings, self._issuer), 0.0

    @property
    def provider(self) -> str:
        """The host name of the provider, for the link."""
        return urlsplit(self._issuer).hostname or self._issuer

    async def depart(self, redirect_uri: str, then: str) -> tuple[str, str]:
        """Returns the URL of the provider's page, and the text that the browser keeps meanwhile."""
        await self._load_metadata()
        try:
            sent = await self._client.create_authorization_url(redirect_uri)
        except Exception as error:  # whatever the provider sent
            raise self._unreachable(error) from error
        departure = Departure(sent["state"], sent["nonce"], sent["code_verifier"], then, time.time() + LASTS)
        text = base64.urlsafe_b64encode(msgspec.json.encode(departure)).decode()
        return sent["url"], f"{text}.{self._key.sign(_PURPOSE, text)}"

    async def arrive(self, request: Request, kept: str, redirect_uri: str) -> tuple[Person, str]:
        """Returns who came back, and the path to go on to. Raises Refused: 403, or 502 if the provider fails."""
        departure = self._read(kept)
        query = request.query_params
        if departure is None or not query.get("state") or query["state"] != departure.state:
            raise Refused(403, "this sign-in was not begun here, or took too long", hint="begin again")
        if "error" in query or "code" not in query:
            raise Refused(403, "the provider did not sign you in", hint="begin again, or ask who runs the provider")
        claims = await self._claims(query["code"], departure, redirect_uri)
        role = role_of_claims(self._rules, claims)
        name = name_of_claims(self._settings.oidc_name, claims)
        if role is None or not name:
            raise Refused(403, f"the provider knows {name or 'you'}, but no role here is for you", hint="ask an admin")
        return Person(kind="oidc", subject=f"{claims['sub']} {self._issuer}", name=name, role=role), departure.next

    async def _claims(self, code: str, departure: Departure, redirect_uri: str) -> Mapping[str, Any]:
        """Returns the claims of the id token, whose signature, issuer, audience, time and nonce Authlib checks."""
        await self._load_metadata()
        try:
            token = await self._client.fetch_access_token(
                redirect_uri=redirect_uri, code=code, code_verifier=departure.verifier
            )
            claims: dict[str, Any] = dict(await self._client.parse_id_token(token, nonce=departure.nonce) or {})
            asks = "userinfo_endpoint" in self._client.server_metadata
            more = dict(await self._client.userinfo(token=token)) if asks else {}
        except Exception as error:  # whatever the provider sent
            raise self._unreachable(error) from error
        if not claims.get("sub"):
            raise self._unreachable(ValueError("the provider sent no id token"))
        return more | claims if more.get("sub") == claims["sub"] else claims

    async def _load_metadata(self) -> None:
        """Reads what the provider says of itself, again after an hour."""
        if time.monotonic() < self._until:
            return
        self._client.server_metadata.pop("_loaded_at", None)
        try:
            metadata = await self._client.load_server_metadata()
        except Exception as error:  # whatever the provider sent
            raise self._unreachable(error) from error
        if str(metadata.get("issuer", "")).rstrip("/") != self._issuer:
            raise self._unreachable(ValueError("the provider says that it is another issuer"))
        named = metadata.get("id_token_signing_alg_values_supported") or ["RS256"]
        metadata["id_token_signing_alg_values_supported"] = [
            each for each in named if each[:2] in ("RS", "ES", "PS", "Ed")
        ]
        metadata.pop("jwks", None)
        self._until = time.monotonic() + _METADATA_SECONDS

    def _unreachable(self, error: Exception) -> Refused:
        Log(part="oidc", issuer=self._issuer).warning(
            "OIDC_FAILED", error_type=type(error).__name__, error=str(error)[:200]
        )
        return Refused(502, "signing in through the provider failed", hint="the server's log says why; try again")

    def _read(self, kept: str) -> Departure | None:
        text, _, signature = kept.partition(".")
        if len(kept) > _MOST or not self._key.is_signed(signature, _PURPOSE, text):
            return None
        departure = msgspec.json.decode(base64.urlsafe_b64decode(text), type=Departure)
        return departure if departure.until > time.time() else None


def _create_client(settings: Settings, issuer: str) -> Any:
    try:
        with warnings.catch_warnings():  # Authlib warns of its own later versions, which concerns no operator
            warnings.simplefilter("ignore")
            from authlib.integrations.starlette_client import StarletteOAuth2App  # noqa: PLC0415 - the extra `oidc`
    except ImportError as error:
        raise InvalidSetting(
            f"oidc_issuer is set, and {error.name} is not installed", hint='run pip install "todoku[oidc]"'
        ) from error
    secret = settings.oidc_client_secret
    return StarletteOAuth2App(
        None,
        name="todoku",
        client_id=settings.oidc_client_id,
        client_secret=None if secret is None else secret.reveal(),
        server_metadata_url=f"{issuer}/.well-known/openid-configuration",
        client_kwargs={
            "scope": " ".join(settings.oidc_scopes),
            "code_challenge_method": "S256",
            "timeout": _TIMEOUT,
        },
    )
