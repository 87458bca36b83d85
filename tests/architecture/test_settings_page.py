"""Every setting is on its page with its default and the risk of changing it (S2-36)."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from todoku.core.alert import ALERT_SETTINGS, NAMES, Alerting, Thresholds
from todoku.core.settings import ALSO_READ_FROM, Settings

DOCS = Path(__file__).resolve().parents[2] / "docs"
SPELLED = {"backoff": "backoff_sec", "alerts": "alert_…"}
"""Fields that are given by other names."""
SAID_IN_WORDS = {"concurrency", "processes", "batch", "backoff_sec", "alert_…", "api_connections", "sqlite_wal",
                 "api_connections_per_address", "mask_fields", "signing_keys", "oidc_scopes"}  # fmt: skip
"""Settings whose default depends on something, or is longer than a cell: the page says it in words."""


class Row(msgspec.Struct, frozen=True):
    """One setting, as the page has it."""

    read_from: str
    default: str
    does: str
    risk: str


def rows(page: str, heading: str) -> dict[str, Row]:
    """The settings of the table with this heading, by name; a cell that names two settings is two rows."""
    text = (DOCS / page).read_text("utf-8")
    table = text[text.index(heading) :].split("\n\n")[0].splitlines()[2:]
    found = {}
    for line in table:
        names, *cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
        several = names.split(" · ")
        for at, name in enumerate(several):
            own = [cell.split(" · ")[at] if cell.count(" · ") + 1 == len(several) else cell for cell in cells]
            found[name.strip("`")] = Row(*own[-4:]) if len(own) == 4 else Row("", *own)
    return found


SETTINGS = rows("settings.md", "| setting | also read from")
ALERTS = rows("alerts.md", "| setting | default | what it does")


def test_the_page_has_every_setting_and_no_other() -> None:
    assert set(SETTINGS) == {SPELLED.get(name, name) for name in Settings.__struct_fields__}


def test_the_page_of_alerts_has_every_setting_of_alerts_and_no_other() -> None:
    own = {f"TODOKU_{name.upper()}" for name in ALERT_SETTINGS if name.removeprefix("alert_") not in NAMES}
    assert set(ALERTS) == own | {"TODOKU_ALERT_<NAME>"}


@pytest.mark.parametrize("name", [*SETTINGS, *ALERTS])
def test_a_setting_says_what_it_does_and_the_risk_of_changing_it(name: str) -> None:
    row = (SETTINGS | ALERTS)[name]
    assert len(row.does.split()) >= 2, row
    assert len(row.risk.split()) >= 6, row


@pytest.mark.parametrize("name", [name for name in SETTINGS if name.endswith(("_sec", "_ms", "_ttl"))])
def test_the_risk_of_a_duration_is_said_in_both_directions(name: str) -> None:
    risk = SETTINGS[name].risk
    assert {"larger", "longer"} & set(re.findall(r"\w+", risk)), risk
    assert {"smaller", "shorter"} & set(re.findall(r"\w+", risk)), risk


@pytest.mark.parametrize("name", sorted(set(SETTINGS) - SAID_IN_WORDS))
def test_the_page_has_the_default_of_the_code(name: str) -> None:
    shown = SETTINGS[name].default.strip("`").split(" (")[0]
    match getattr(Settings(), name):
        case None | ():
            assert shown == ""
        case bool(value):
            assert shown == str(value).lower()
        case int(value) | float(value):
            assert float(shown.replace(",", "")) == value
        case value:
            assert shown == (value if isinstance(value, str) else "")


def test_the_page_has_the_other_names_of_the_settings() -> None:
    for name, others in ALSO_READ_FROM.items():
        assert [other for other in others if f"`{other}`" not in SETTINGS[name].read_from] == [], name


def test_the_thresholds_of_the_page_are_those_of_the_code() -> None:
    page = (DOCS / "alerts.md").read_text("utf-8")
    shown = dict(re.findall(r"^\| `(\w+)` \| ([0-9.]+)", page, re.MULTILINE))
    assert {name: float(shown[name]) for name in NAMES} == msgspec.structs.asdict(Thresholds())
    assert float(ALERTS["TODOKU_ALERT_INTERVAL_SEC"].default) == Alerting().interval_sec
