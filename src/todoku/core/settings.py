"""Settings: read and validated once, then passed on as a frozen value.

Each setting is taken from `TODOKU_<NAME>`, else from the variables of `ALSO_READ_FROM`, else from `todoku.toml`, else
it has its default. This module only converts mappings to `Settings`; callers read the environment and the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from todoku.core.alert import ALERT_SETTINGS, Alerting, alerting
from todoku.core.backoff import DEFAULT, Backoff, exponential, table
from todoku.core.errors import InvalidSetting
from todoku.core.message import USUAL_ATTEMPTS
from todoku.core.msgspec_warmup import warm_up
from todoku.core.oidc import ClientSecret, check_issuer, client_secret, role_rules
from todoku.core.proxies import proxies
from todoku.core.redaction import MASKED
from todoku.core.scope import Secret, token
from todoku.core.sealed import MasterKeys, master_keys
from todoku.core.signature import SigningKeys, signing_keys

DAY: Final = 86_400.0


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set, with its default. Durations are seconds."""

    database: str = "sqlite:///todoku.db"
    schema: str | None = None
    enabled: bool = True
    concurrency: int | None = None
    processes: int | None = None
    batch: int | None = None
    poll_interval_sec: float = 0.5
    notify: bool = True
    """Publishers wake idle workers. Workers always poll as well, so deliveries do not depend on it."""
    lease_sec: float = 120.0
    reclaim_interval_sec: float = 5.0
    max_processing_sec: float = 600.0
    max_attempts: int = USUAL_ATTEMPTS
    max_lost: int = 3
    backoff: Backoff = DEFAULT
    send_timeout_ms: int = 2500
    http_timeout_sec: float = 60.0
    http_concurrency: int = 64
    http_per_host: int = 8
    http_allow: tuple[str, ...] = ()
    """Private networks and host names that requests may be sent to."""
    http_retry_4xx: bool = True
    http_nonretryable_4xx: bool = False
    """The header Upstash-NonRetryable-Error counts with every 4xx, not only with 489."""
    http_rewrite: tuple[str, ...] = ()
    """For development: `origin=origin`. Requests to the first are sent to the second, which may be this machine."""
    http_loopback: bool = False
    drain_grace_sec: float = 25.0
    stats_interval_sec: float = 30.0
    tracebacks: Literal["off", "user", "full"] = "user"
    """Which frames are kept of a failed attempt's traceback: none, those of the user's own code, or all."""
    span_ratio: float = 1.0
    """The share of attempts without a trace in their message for which OpenTelemetry's sampler is consulted."""
    host: str = "127.0.0.1"
    port: int = 8320
    serve_workers: int = 1
    """Processes that serve HTTP on this port; more than one only on PostgreSQL."""
    app: str | None = None
    """`module:attribute` of the App that a daemon runs."""
    api_rate: float = 1000.0
    """Requests per second and token, with bursts of twice as many; others get status 429."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of proxies whose `X-Forwarded-For` names the caller."""
    metrics_open: bool = False
    """`/metrics` needs no token."""
    api_idle_sec: float = 5.0
    """How long a connection to the HTTP API may be idle between two requests."""
    api_receive_sec: float = 10.0
    """How long a client may take to send the head of a request, to send its body, and to go on reading the response."""
    api_connections: int | None = None
    """The most concurrent connections to the HTTP API. None: half of the process's limit of open files."""
    api_connections_per_address: int | None = None
    """The most of them from one address (IPv6: from one /64). None: half of `api_connections`."""
    trace_url: str | None = None
    """Where the dashboard links to for a trace: a URL with `{trace_id}`."""
    guardrail_db_failures: int = 3
    unknown_after_sec: float = 600.0
    ledger_ttl: float = 2 * DAY
    ingest_dedupe: float = 90 * DAY
    history_ttl: float = 30 * DAY
    max_payload_bytes: int = 1 << 20
    lock_timeout_sec: float = 1.0
    statement_timeout_sec: float = 30.0
    connections: int = 5
    prepare_statements: bool = True
    sqlite_wal: bool | None = None
    """None: WAL if the linked SQLite is safe with it. True requires WAL; False disables it."""
    mask_fields: tuple[str, ...] = MASKED
    master_keys: MasterKeys = MasterKeys()
    """The keys that wrap data keys of encrypted messages, the current one first. No repr contains their bytes."""
    token: Secret | None = None
    """The first admin token of the HTTP API. None: only the tokens in the database are valid."""
    signing_keys: SigningKeys | None = None
    """The keys that sign HTTP deliveries. None: todoku creates keys and stores them in the database."""
    encrypt: Literal["declared", "all"] = "declared"
    secrets_dir: str | None = None
    """The directory of the files of `Ref("file:…")`."""
    web_read_only: bool = False
    """The dashboard shows everything and changes nothing, for every role."""
    web_idle_sec: float = 12 * 3600.0
    """How long a browser stays signed in without a request."""
    web_session_sec: float = 7 * DAY
    """How long a browser stays signed in at most."""
    oidc_issuer: str | None = None
    """The URL of the OpenID provider through which people sign in."""
    oidc_client_id: str | None = None
    oidc_client_secret: ClientSecret | None = None
    oidc_scopes: tuple[str, ...] = ("openid", "profile", "email")
    oidc_roles: tuple[str, ...] = ()
    """`claim=value:role`: who may sign in through the provider, and what they may do. Without one, no one may."""
    oidc_name: str = "email"
    """The claim that names a person, on the page and in the audit."""
    alerts: Alerting = Alerting()
    """Where a daemon sends alerts, and their thresholds (`TODOKU_ALERT_…`)."""


warm_up(Settings)


ALSO_READ_FROM: Final[dict[str, tuple[str, ...]]] = {
    "database": ("DATABASE_URL",),
    "enabled": ("OUTBOX_ENABLED",),
    "concurrency": ("OUTBOX_CONCURRENCY", "WORKER_COUNT"),
    "batch": ("OUTBOX_BATCH",),
    "poll_interval_sec": ("OUTBOX_POLL_INTERVAL_SEC",),
    "lease_sec": ("OUTBOX_LOCK_LEASE_SEC", "OUTBOX_LEASE_SECONDS"),
    "reclaim_interval_sec": ("OUTBOX_RECLAIM_INTERVAL_SECONDS",),
    "max_processing_sec": ("OUTBOX_MAX_PROCESSING_SECONDS",),
    "max_attempts": ("OUTBOX_MAX_ATTEMPTS",),
    "send_timeout_ms": ("BROKER_TIMEOUT_MS",),
    "backoff_sec": ("OUTBOX_BACKOFF_SEC",),
}

_POSITIVE: Final = frozenset(
    {
        "concurrency",
        "processes",
        "serve_workers",
        "batch",
        "max_attempts",
        "max_lost",
        "send_timeout_ms",
        "guardrail_db_failures",
    }
    | {"max_payload_bytes", "connections", "lease_sec", "poll_interval_sec", "reclaim_interval_sec"}
    | {"max_processing_sec", "http_timeout_sec", "lock_timeout_sec", "statement_timeout_sec"}
    | {"http_concurrency", "http_per_host"}
    | {"api_rate", "api_idle_sec", "api_receive_sec", "api_connections", "api_connections_per_address"}
    | {"web_idle_sec", "web_session_sec"}
    | {"ledger_ttl", "ingest_dedupe", "history_ttl", "unknown_after_sec", "stats_interval_sec"}
)


_BOOLEAN: Final = frozenset(
    {"enabled", "notify", "prepare_statements", "sqlite_wal"}
    | {"http_retry_4xx", "http_nonretryable_4xx", "http_loopback", "metrics_open", "web_read_only"}
)
_LISTS: Final = frozenset({"mask_fields", "http_allow", "http_rewrite", "trusted_proxies", "oidc_scopes", "oidc_roles"})
"""Settings that may be given as text with commas."""


def read_settings(environ: Mapping[str, str], file: Mapping[str, object] | None = None, **given: object) -> Settings:
    """Returns the settings from arguments, the environment and a parsed `todoku.toml`, in this order of precedence."""
    return check_settings(gather_settings(environ, file, **given))


def gather_settings(
    environ: Mapping[str, str], file: Mapping[str, object] | None = None, **given: object
) -> dict[str, object]:
    """Returns the value of each setting as it was given, for `check_settings`."""
    values: dict[str, object] = dict(file or {})
    for name in (*Settings.__struct_fields__, *ALERT_SETTINGS):
        if name not in ("backoff", "alerts") and (found := _from_environment(environ, name)) is not None:
            values[name] = found
    if (policy := _backoff(environ, values)) is not None:
        values["backoff"] = policy
    return values | {name: value for name, value in given.items() if value is not None}


def check_settings(values: Mapping[str, object]) -> Settings:
    """Returns the settings of these values; raises InvalidSetting."""
    checked = dict(values)
    alerts = alerting(checked)
    return msgspec.structs.replace(_check(checked), alerts=alerts)


def find_origins(environ: Mapping[str, str], file: Mapping[str, object] | None = None) -> dict[str, str]:
    """Returns where `gather_settings` takes each setting from: a variable's name, or "todoku.toml".

    A setting that is not in it has its default, unless it is given as an argument.
    """
    origins = dict.fromkeys(file or {}, FILE)
    for name in (*Settings.__struct_fields__, *ALERT_SETTINGS):
        if name not in ("backoff", "alerts") and (variable := _find_variable(environ, name)) is not None:
            origins[name] = variable
    listed = _find_variable(environ, "backoff_sec")
    spread = [name for name in _BACKOFF_VARIABLES if environ.get(name, "").strip()]
    if found := ([listed] if listed else spread):
        origins["backoff"] = ", ".join(found)
    elif origins.pop("backoff_sec", None) is not None:
        origins["backoff"] = FILE
    return origins


FILE: Final = "todoku.toml"
_BACKOFF_VARIABLES: Final = ("OUTBOX_BASE_BACKOFF_SECONDS", "OUTBOX_MAX_BACKOFF_SECONDS")


def _from_environment(environ: Mapping[str, str], name: str) -> str | None:
    variable = _find_variable(environ, name)
    return None if variable is None else environ[variable].strip()


def _find_variable(environ: Mapping[str, str], name: str) -> str | None:
    """Returns the variable that sets this setting: the first that is not empty."""
    variables = (f"TODOKU_{name.upper()}", *ALSO_READ_FROM.get(name, ()))
    return next((variable for variable in variables if environ.get(variable, "").strip()), None)


def _backoff(environ: Mapping[str, str], values: dict[str, object]) -> Backoff | None:
    """Returns a table from BACKOFF_SEC (`[5,10]` or `5,10`), or an exponential one from BASE/MAX_BACKOFF_SECONDS."""
    in_file = values.pop("backoff_sec", None)
    listed = _from_environment(environ, "backoff_sec")
    base, cap = (environ.get(name, "").strip() for name in _BACKOFF_VARIABLES)
    try:
        if listed is not None:
            return table(*_numbers(listed))
        if base or cap:
            return exponential(float(base or 1), cap=float(cap or 60))
        if in_file is not None:
            return table(*_numbers(in_file))
    except (TypeError, ValueError) as error:
        raise InvalidSetting(f"the back-off cannot be read: {error}", hint="for example 5,10,20 or [5, 10]") from error
    return None


def _numbers(listed: object) -> list[float]:
    if isinstance(listed, str):
        listed = json.loads(listed if listed.lstrip().startswith("[") else f"[{listed}]")
    if not isinstance(listed, list):
        raise TypeError(f"{listed!r} is not a list of seconds")
    return [float(item) for item in listed]


def _check(values: dict[str, object]) -> Settings:
    fields = {name: _parse_text(name, value) for name, value in values.items()}
    secrets = _take_secrets(fields)
    policy = fields.pop("backoff", DEFAULT)
    if not isinstance(policy, Backoff):
        raise InvalidSetting("`backoff` must be a back-off policy", hint="use todoku.table, linear or exponential")
    try:
        settings = msgspec.convert(fields, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidSetting(
            f"a setting cannot be read: {error}", hint="names and defaults: docs/settings.md"
        ) from None
    for name in _POSITIVE:
        value = getattr(settings, name)
        if value is not None and not 0 < value < math.inf:
            raise InvalidSetting(f"{name} cannot be {value}", hint="it must be a number greater than 0")
    if not 0 <= settings.drain_grace_sec < math.inf:
        raise InvalidSetting(f"drain_grace_sec cannot be {settings.drain_grace_sec}", hint="give seconds ≥ 0")
    if not 0 <= settings.port <= 65_535:
        raise InvalidSetting(f"port cannot be {settings.port}", hint="0 to 65535; 0 means any free port")
    if not 0 <= settings.span_ratio <= 1:
        raise InvalidSetting(f"span_ratio cannot be {settings.span_ratio}", hint="give a share from 0 to 1")
    if (url := settings.trace_url) is not None and not (
        "{trace_id}" in url and url.startswith(("https://", "http://"))
    ):
        raise InvalidSetting(f"trace_url cannot be {url!r}", hint="for example https://jaeger.example/trace/{trace_id}")
    proxies(settings.trusted_proxies)
    check_issuer(settings.oidc_issuer, settings.oidc_client_id)
    role_rules(settings.oidc_roles)
    if settings.lease_sec < 1:
        raise InvalidSetting(f"lease_sec cannot be {settings.lease_sec}", hint="a lease must be at least one second")
    return msgspec.structs.replace(settings, backoff=policy, **secrets)


def _take_secrets(fields: dict[str, object]) -> dict[str, object]:
    """Takes secrets out of `fields` and parses them separately, because msgspec's errors could quote them."""
    return {
        "master_keys": master_keys(fields.pop("master_keys", "")),
        "token": token(fields.pop("token", None)),
        "signing_keys": signing_keys(fields.pop("signing_keys", None)),
        "oidc_client_secret": client_secret(fields.pop("oidc_client_secret", None)),
    }


def _parse_text(name: str, value: object) -> object:
    """Converts the text of a list or a boolean; returns other values as they are."""
    if name in _LISTS and isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    return _boolean(value) if name in _BOOLEAN else value


def _boolean(value: object) -> object:
    words = {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
    }
    return words.get(value.strip().lower(), value) if isinstance(value, str) else value
