"""The settings of alerts, `TODOKU_ALERT_…`: the sinks that a daemon sends them to, and the thresholds."""

from __future__ import annotations

import math
from typing import Final
from urllib.parse import urlsplit

import msgspec

from todoku.core.alert import NAMES, Thresholds
from todoku.core.errors import InvalidSetting
from todoku.core.msgspec_warmup import warm_up

_OFF: Final = frozenset({"off", "none", "never"})


class Alerting(msgspec.Struct, frozen=True, kw_only=True):
    """Where a daemon sends alerts, and when. Addresses may contain passwords, so the repr leaves them out."""

    thresholds: Thresholds = Thresholds()
    interval_sec: float = 15.0
    remind_sec: float = 4 * 3600.0
    webhook: str | None = None
    sentry: str | None = None
    """A DSN."""
    mail_to: tuple[str, ...] = ()
    mail_from: str = "todoku@localhost"
    mail_smtp: str = "smtp://127.0.0.1:25"

    def __repr__(self) -> str:
        sinks = {"webhook": self.webhook, "sentry": self.sentry, "mail": self.mail_to}
        return f"Alerting({', '.join(name for name, value in sinks.items() if value) or 'log only'})"


warm_up(Alerting)


ALERT_SETTINGS: Final = tuple(f"alert_{name}" for name in (*NAMES, *Alerting.__struct_fields__) if name != "thresholds")

SECRET_ALERTS: Final = ("TODOKU_ALERT_WEBHOOK", "TODOKU_ALERT_SENTRY", "TODOKU_ALERT_MAIL_SMTP")
"""Settings that may contain a password. Each is also read from the file named by `<NAME>_FILE`."""


def alerting(values: dict[str, object]) -> Alerting:
    """Takes every `alert_…` out of `values` and returns the settings of alerts; raises InvalidSetting."""
    given = {name.removeprefix("alert_"): values.pop(name) for name in list(values) if name.startswith("alert_")}
    thresholds = Thresholds(**{name: _threshold(name, given.pop(name)) for name in NAMES if name in given})
    if isinstance(to := given.get("mail_to"), str):
        given["mail_to"] = [address.strip() for address in to.split(",") if address.strip()]
    if unknown := given.keys() - set(Alerting.__struct_fields__) | given.keys() & {"thresholds"}:
        raise InvalidSetting(
            f"there is no setting alert_{', alert_'.join(sorted(unknown))}", hint="names and defaults: docs/alerts.md"
        )
    try:
        parsed = msgspec.convert(given, Alerting, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidSetting(f"a setting alert_… cannot be read: {error}", hint="see docs/alerts.md") from None
    return msgspec.structs.replace(_check(parsed), thresholds=thresholds)


def _threshold(name: str, value: object) -> float | None:
    if isinstance(value, str) and value.lower() in _OFF:
        return None
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise InvalidSetting(f"alert_{name} cannot be {value!r}", hint="a number ≥ 0, or off")
    return number


def _check(parsed: Alerting) -> Alerting:
    for name in ("interval_sec", "remind_sec"):
        if not 0 < (value := getattr(parsed, name)) < math.inf:
            raise InvalidSetting(f"alert_{name} cannot be {value}", hint="it must be a number greater than 0")
    for name, schemes in (("webhook", ("http", "https")), ("sentry", ("http", "https")), ("mail_smtp", _SMTP)):
        url = getattr(parsed, name)
        if url is not None and (urlsplit(url).scheme not in schemes or not urlsplit(url).hostname):
            raise InvalidSetting(  # the address itself may be a secret
                f"alert_{name} is not a URL that begins with {' or '.join(schemes)}",
                hint=f"for example {schemes[-1]}://host/…",
            )
    for address in (*parsed.mail_to, parsed.mail_from):
        if "@" not in address or any(character in address for character in "\r\n<>, "):
            raise InvalidSetting(
                f"{address!r} is not a mail address", hint="alert_mail_to=ops@example.com,dev@example.com"
            )
    return parsed


_SMTP: Final = ("smtp", "smtps")
