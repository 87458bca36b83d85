"""The settings in force in this process, each with its origin; secrets only as "set" or "not set"."""

from __future__ import annotations

from typing import Final

import msgspec

from todoku.core.alert import SECRET_ALERTS, Alerting
from todoku.core.settings import Settings
from todoku.engine.diagnostics.summary import without_password
from todoku.engine.process_settings import find_setting_origins

_SECRETS: Final = frozenset({"token", "signing_keys", "master_keys", "oidc_client_secret"}) | {
    name.removeprefix("TODOKU_").lower() for name in SECRET_ALERTS
}
_PLAIN_SMTP: Final = Alerting().mail_smtp
DEFAULT: Final = "default"
ARGUMENT: Final = "argument"


class SettingInForce(msgspec.Struct, frozen=True, kw_only=True):
    """A setting: its value and default as text, and where the value comes from.

    `origin` is an environment variable's name, "todoku.toml", "argument" (of the App or of the command line), or
    "default". Of a secret, both texts are "set" or "not set".
    """

    name: str
    value: str
    default: str
    origin: str
    secret: bool


def describe_settings(settings: Settings) -> tuple[SettingInForce, ...]:
    """Returns every setting of a process whose settings these are, by name."""
    origins, without_arguments = find_setting_origins()
    found, usual, default = (_texts(one) for one in (settings, without_arguments, Settings()))
    return tuple(
        SettingInForce(
            name=name,
            value=found[name],
            default=default[name],
            origin=origins.get(name, DEFAULT) if _same(name, settings, without_arguments) else ARGUMENT,
            secret=name in _SECRETS,
        )
        for name in sorted(usual)
    )


def _same(name: str, settings: Settings, other: Settings) -> bool:
    return _value(settings, name) == _value(other, name)


def _texts(settings: Settings) -> dict[str, str]:
    return {name: _text(name, _value(settings, name)) for name in _names()}


def _names() -> list[str]:
    plain = [name for name in Settings.__struct_fields__ if name != "alerts"]
    sinks = [name for name in Alerting.__struct_fields__ if name != "thresholds"]
    thresholds = type(Alerting().thresholds).__struct_fields__
    return [*plain, *(f"alert_{name}" for name in (*sinks, *thresholds))]


def _value(settings: Settings, name: str) -> object:
    if not name.startswith("alert_"):
        return getattr(settings, name)
    short, alerts = name.removeprefix("alert_"), settings.alerts
    return getattr(alerts if short in Alerting.__struct_fields__ else alerts.thresholds, short)


def _text(name: str, value: object) -> str:
    if name in _SECRETS:
        return "set" if value and value != _PLAIN_SMTP else "not set"
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case tuple():
            return ", ".join(map(str, value))
        case str():
            return without_password(value) if name == "database" else value
        case _:
            return str(value)
