"""Alerts (DESIGN §8, S4-34…45): which number raises one, and when it is told. By table, and by property."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.making import quick
from todoku.core.alert import (
    GIVE_UP,
    HOLDS,
    LEASE,
    NAMES,
    AlertStanding,
    DueAlert,
    Forget,
    Keep,
    Name,
    Raised,
    Reading,
    Thresholds,
    action,
    find_raised,
    new_standing,
    percentile,
    ratio,
    step,
    summary,
)
from todoku.core.errors import InvalidSetting
from todoku.core.settings import read_settings

DEFAULTS = {
    "dead_letters": 0, "dead_letter_age": 24 * 3600, "dead_letter_inflow": 0, "publish_failure_ratio": 0.01,
    "handler_error_ratio": 0.005, "retry_ratio": 0.01, "oldest_age": 60, "lag": 10_000, "stuck": 0, "e2e_p95": 10,
    "queue_fallback": 0, "projection_stopped": 0, "capture_stopped": 0,
}  # fmt: skip
QUIET, REMIND = 60.0, 3600.0
DEAD = Raised("dead_letters", 2.0, 0.0)


# ---------------------------------------------------------------------------------------------- thresholds


def test_every_threshold_of_the_design_is_a_setting_with_its_default() -> None:
    assert msgspec.structs.asdict(Thresholds()) == DEFAULTS
    assert msgspec.structs.asdict(read_settings({}).alerts.thresholds) == DEFAULTS
    assert set(NAMES) == set(DEFAULTS) == set(Reading.__struct_fields__)


@pytest.mark.parametrize("name", NAMES)
def test_a_threshold_is_read_from_its_variable_and_can_be_switched_off(name: Name) -> None:
    variable = f"TODOKU_ALERT_{name.upper()}"
    assert getattr(read_settings({variable: "7.5"}).alerts.thresholds, name) == 7.5
    assert getattr(read_settings({variable: "off"}).alerts.thresholds, name) is None
    with pytest.raises(InvalidSetting, match=f"alert_{name}"):
        read_settings({variable: "-1"})


def test_arguments_precede_the_environment_and_that_the_file() -> None:
    file, environ = {"alert_lag": 1, "alert_stuck": 2, "alert_remind_sec": 3}, {"TODOKU_ALERT_STUCK": "4"}
    alerts = read_settings(environ, file, alert_lag=5).alerts
    assert (alerts.thresholds.lag, alerts.thresholds.stuck, alerts.remind_sec) == (5, 4, 3)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("WEBHOOK", "ftp://host/x", "alert_webhook is not a URL that begins with http or https"),
        ("SENTRY", "https://", "alert_sentry"),
        ("MAIL_SMTP", "host:25", "alert_mail_smtp"),
        ("MAIL_TO", "ops@example.com\nBcc: all@example.com", "is not a mail address"),
        ("MAIL_FROM", "nobody", "is not a mail address"),
        ("INTERVAL_SEC", "0", "alert_interval_sec"),
        ("REMIND_SEC", "soon", "alert_"),
    ],
)
def test_what_cannot_be_read_is_named(variable: str, value: str, says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        read_settings({f"TODOKU_ALERT_{variable}": value})


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="alert_dead_leters"):
        read_settings({}, {"alert_dead_leters": 1})


def test_addresses_are_in_no_repr() -> None:
    """They hold passwords."""
    settings = read_settings(
        {
            "TODOKU_ALERT_WEBHOOK": "https://hooks.example.com/hunter2",
            "TODOKU_ALERT_MAIL_SMTP": "smtp://ana:hunter2@mail.example.com",
            "TODOKU_ALERT_SENTRY": "https://hunter2@sentry.example.com/1",
        }
    )
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize("name", NAMES)
def test_only_a_number_above_its_threshold_raises(name: Name) -> None:
    limit = float(DEFAULTS[name])
    assert find_raised(Reading(**{name: limit}), Thresholds()) == {}
    assert find_raised(Reading(**{name: limit + 1}), Thresholds()) == {name: Raised(name, limit + 1, limit)}
    assert find_raised(Reading(**{name: limit + 1}), Thresholds(**{name: None})) == {}
    assert find_raised(Reading(**{name: None}), Thresholds()) == {}
    assert summary(name, limit + 1)
    assert action(name)


# ----------------------------------------------------------------------------------------- when it is told


def test_it_is_told_when_it_begins_reminded_of_and_told_when_it_is_over() -> None:
    told = lived([(0, DEAD), (15, DEAD), (30, DEAD), (REMIND + 30, DEAD), (REMIND + 45, None), (REMIND + 90, None)])
    assert told == [("begun", 0), ("reminder", REMIND + 30), ("over", REMIND + 90)]


def test_an_alert_that_must_last_is_told_after_it_has_lasted() -> None:
    slow = Raised("oldest_age", 70.0, 60.0)
    assert HOLDS["oldest_age"] == 60
    assert lived([(0, slow), (30, slow), (59, slow), (60, slow)]) == [("begun", 60)]
    assert lived([(0, slow), (30, slow), (45, None), (100, None)]) == []


def test_one_that_comes_and_goes_is_one_alert() -> None:
    """Another daemon's counters may see nothing of it: not seen once is not over."""
    told = lived([(0, DEAD), (15, None), (30, DEAD), (45, None), (60, None), (75, DEAD), (90, None), (150, None)])
    assert told == [("begun", 0), ("over", 150)]


def test_while_one_daemon_tells_it_no_other_does_and_after_its_lease_another_may() -> None:
    taken = step(new_standing(DEAD, "mail", 0), DEAD, 0, quiet=QUIET, remind=REMIND)
    assert isinstance(taken, Keep)
    assert taken.telling == DueAlert("begun", taken.standing)
    assert step(taken.standing, DEAD, LEASE - 1, quiet=QUIET, remind=REMIND).telling is None  # type: ignore[union-attr]
    again = step(taken.standing, DEAD, LEASE, quiet=QUIET, remind=REMIND)
    assert isinstance(again, Keep)
    assert again.telling is not None
    assert again.standing.tries == taken.standing.tries + 1


def test_one_that_could_not_be_told_is_told_although_it_is_over() -> None:
    """The sink was away while it lasted: whoever watches hears of it, for a day."""
    untold = msgspec.structs.replace(new_standing(DEAD, "mail", 0), tries=1, next_at=LEASE)
    late = step(untold, None, 600, quiet=QUIET, remind=REMIND)
    assert isinstance(late, Keep)
    assert late.telling is not None
    assert late.telling.kind == "begun"
    assert step(untold, None, GIVE_UP, quiet=QUIET, remind=REMIND) == Forget()


def test_one_that_returns_before_its_end_was_told_goes_on_as_if_nothing_had_been() -> None:
    ended = msgspec.structs.replace(
        new_standing(DEAD, "mail", 0), told_at=0.0, over=True, next_at=100, tries=2, seen_at=10
    )
    busy = step(ended, DEAD, 99, quiet=QUIET, remind=REMIND)
    assert busy == Keep(ended)  # its end is being told: then it begins anew
    back = step(ended, DEAD, 100, quiet=QUIET, remind=REMIND)
    assert isinstance(back, Keep)
    assert back.telling is None
    assert (back.standing.over, back.standing.next_at) == (False, REMIND)
    assert back.standing.tries > ended.tries  # who held it before cannot end it any more


@quick
@given(st.lists(st.tuples(st.floats(1, 200), st.booleans()), min_size=1, max_size=40))
def test_whatever_is_seen_a_beginning_comes_before_an_end_and_they_alternate(looks: list[tuple[float, bool]]) -> None:
    at, sights = 0.0, []
    for pause, seen in looks:
        at += pause
        sights.append((at, DEAD if seen else None))
    kinds = [kind for kind, _ in lived(sights) if kind != "reminder"]
    assert kinds == ["begun", "over"] * (len(kinds) // 2) + ["begun"] * (len(kinds) % 2)


def lived(sights: list[tuple[float, Raised | None]]) -> list[tuple[str, float]]:
    """What is told, and when, of an alert that one daemon looks at; each telling succeeds at once."""
    known: AlertStanding | None = None
    told: list[tuple[str, float]] = []
    for now, found in sights:
        if known is None and found is not None:
            known = new_standing(found, "mail", now)
        if known is None:
            continue
        match step(known, found, now, quiet=QUIET, remind=REMIND):
            case Forget():
                known = None
            case Keep(standing, None):
                known = standing
            case Keep(standing, DueAlert(kind, _)):
                told.append((kind, now))
                over = kind == "over"
                known = None if over else msgspec.structs.replace(standing, told_at=now, next_at=now + REMIND)
    return told


# ------------------------------------------------------------------------------------------------- numbers


def test_a_share_of_nothing_is_unknown() -> None:
    assert ratio(0, 0) is None
    assert ratio(1, 4) == 0.25


@pytest.mark.parametrize(
    ("share", "up_to", "number", "is_"),
    [
        (0.95, [0, 0, 0], 0, None),
        (0.5, [10, 10, 10], 10, 0.5),
        (0.95, [0, 100, 100], 100, 9.55),
        (0.95, [95, 100, 100], 100, 1.0),
        (0.95, [0, 0, 0], 10, 100.0),  # beyond the last edge nobody knows how far
        (0.95, [50, 50, 100], 100, 91.0),
    ],
)
def test_a_percentile_is_read_from_a_histogram(share: float, up_to: list[float], number: int, is_: float) -> None:
    found = percentile(share, [1, 10, 100], up_to, number)
    assert found == (None if is_ is None else pytest.approx(is_))
