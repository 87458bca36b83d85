"""The alert rules that are shipped: every threshold of DESIGN §8, over metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from todoku.core.alert import HOLDS, Thresholds
from todoku.engine.observability.exposition import (
    CAPTURE_CHANGES,
    CAPTURE_GAUGES,
    FLOW_PARKED_RUNS,
    GAUGES,
    PROJECTION_GAUGES,
)
from todoku.engine.observability.metrics import COUNTERS, HISTOGRAMS

RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "todoku.rules.yml"
DASHBOARD = RULES.parents[1] / "grafana" / "todoku.json"
_PAIR = re.compile(r"(?P<indent> *)(?P<item>- )?(?P<name>\w+):(?: (?P<value>.*))?")


class Rule(msgspec.Struct):
    """One rule, as the file says it."""

    expr: str = ""
    record: str = ""
    alert: str = ""
    lasts: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


def rules() -> list[Rule]:
    """The rules of the file. It keeps to a few forms of YAML, which are all that is read here; others are refused."""
    found: list[Rule] = []
    inside = ""
    for line in RULES.read_text("utf-8").splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line.startswith(" " * 10) and inside == "expr":
            found[-1].expr += line.strip() + " "
            continue
        match = _PAIR.fullmatch(line)
        assert match, line
        depth, name, value = len(match["indent"]), match["name"], (match["value"] or "").strip('"')
        if match["item"] and depth == 6:
            found.append(Rule())
        if depth == 10:
            getattr(found[-1], inside)[name] = value
        elif depth >= 6:
            assert name in ("record", "alert", "expr", "for", "labels", "annotations"), line
            assert (value == "|") == (name == "expr"), line
            inside = name
            match name:
                case "labels" | "annotations":
                    setattr(found[-1], name, {})
                case "for":
                    found[-1].lasts = value
                case "record" | "alert":
                    setattr(found[-1], name, value)
    return found


RECORDED = {rule.record: rule for rule in rules() if rule.record}
ALERTS = {rule.labels["threshold"]: rule for rule in rules() if "threshold" in rule.labels}
OF_ONE = {rule.alert: rule for rule in rules() if rule.alert and "threshold" not in rule.labels}


def test_every_threshold_of_the_design_has_an_alert_with_its_default() -> None:
    """`for` of the age of dead letters, the number behind the last comparison of all others."""
    thresholds = {name: float(re.findall(r"> ([0-9.]+)", rule.expr)[-1]) for name, rule in ALERTS.items()}
    assert thresholds == msgspec.structs.asdict(Thresholds(dead_letter_age=0.0))
    assert ALERTS["dead_letter_age"].lasts == "24h"
    assert Thresholds().dead_letter_age == 24 * 3600
    assert "[5m]" in ALERTS["dead_letter_inflow"].expr


def test_the_daemon_and_prometheus_wait_equally_long_before_they_tell() -> None:
    """`for:` of a rule, and `HOLDS` of the alert that a daemon tells by itself."""
    lasts = {name: rule.lasts for name, rule in ALERTS.items() if rule.lasts and name != "dead_letter_age"}
    assert lasts == {name: f"{seconds / 60:.0f}m" for name, seconds in HOLDS.items()}


def test_every_alert_says_what_happened_and_what_to_do() -> None:
    for rule in (*ALERTS.values(), *OF_ONE.values()):
        assert rule.alert.startswith("Todoku"), rule
        assert rule.annotations.keys() == {"summary", "action"}, rule
        assert rule.labels["severity"] in ("warning", "critical"), rule


def test_projections_have_the_same_thresholds_each_for_itself() -> None:
    """S2-26, S2-27, S2-34: lag and age by projection; the alerts of everything do not count them twice."""
    alerts = Thresholds()
    assert f"> {alerts.lag:.0f} " in OF_ONE["TodokuProjectionLag"].expr
    assert f"> {alerts.oldest_age:.0f} " in OF_ONE["TodokuProjectionBehind"].expr
    apart = [rule for rule in OF_ONE.values() if rule.alert != "TodokuStepFailures"]
    for rule in (*apart, ALERTS["projection_stopped"], ALERTS["capture_stopped"]):
        kind = "capture" if "Capture" in rule.alert else "projection"
        assert f"max by ({kind}) " in rule.expr or "todoku:projection_" in rule.expr
        assert f"{{{{ $labels.{kind} }}}}" in rule.annotations["summary"] + rule.annotations["action"], rule
    for name in ("lag", "oldest_age"):
        assert '{projection=""}' in ALERTS[name].expr


def test_the_service_levels_are_recorded() -> None:
    assert "(1 - 0.999)" in RECORDED["todoku:publish_budget_left:ratio30d"].expr
    assert "(1 - 0.995)" in RECORDED["todoku:handler_budget_left:ratio30d"].expr


def test_rules_ask_for_metrics_and_labels_that_exist() -> None:
    asked = {name for rule in rules() for name in metrics_of(rule.expr)}
    assert len(asked) > 7


LABELS = {metric.name: (metric.label, metric.known) for metric in COUNTERS} | dict.fromkeys(GAUGES, (None, ()))
LABELS |= {f"{metric.name}_bucket": (metric.label, ()) for metric in HISTOGRAMS}


LABELS[FLOW_PARKED_RUNS[0]] = ("waits_for", ())
LABELS |= dict.fromkeys((*CAPTURE_GAUGES, CAPTURE_CHANGES[0]), ("capture", ()))
LABELS |= dict.fromkeys((*PROJECTION_GAUGES, "outbox_lag_events", "outbox_oldest_age_seconds"), ("projection", ()))
FAMILIES = "flow|outbox|idempo|idempotency|queue|destination|ingest|schedule|api|projection|capture"


def metrics_of(expression: str) -> set[str]:
    """The metrics that an expression asks for; each exists, with the labels it is asked by."""
    asked = set()
    assert expression.count("(") == expression.count(")"), expression
    for name, selector in re.findall(rf"(?<![\w:])((?:{FAMILIES})_\w+)(\{{[^}}]*\}})?", expression):
        label, known = LABELS[name]
        asked.add(name)
        for used, values in re.findall(r'(\w+)(?:=~|!=|=)"([^"]*)"', selector):
            assert used in (label or "").split(","), expression
            among = {value for each in known for value in each.split(",")}
            assert not known or set(values.split("|")) <= among, expression
    for name in re.findall(r"\btodoku:[\w:]+", expression):
        assert name in RECORDED, expression
        asked |= metrics_of(RECORDED[name].expr)
    return asked


def test_the_dashboard_shows_every_metric_and_the_thresholds_of_the_alerts() -> None:
    """S4-57. A panel whose metric no rule and no panel asks for would be a metric nobody ever sees."""
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    shown = {name for panel in panels for target in panel["targets"] for name in metrics_of(target["expr"])}
    assert {name.removesuffix("_bucket") for name in shown} >= set(LABELS) - {"ingest_old_secret_total"} - {
        f"{metric.name}_bucket" for metric in HISTOGRAMS
    }
    lines = {
        panel["title"]: panel["fieldConfig"]["defaults"]["thresholds"]["steps"][-1]["value"]
        for panel in panels
        if panel["type"] == "timeseries" and len(panel["fieldConfig"]["defaults"]["thresholds"]["steps"]) > 1
    }
    alerts = Thresholds()
    assert lines["Publishes that fail"] == alerts.publish_failure_ratio
    assert lines["Deliveries that end as dead letters"] == alerts.handler_error_ratio
    assert lines["Attempts made again"] == alerts.retry_ratio
    assert lines["From due to arrived, 95th percentile"] == alerts.e2e_p95


def test_no_two_panels_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: `make system-packages`")
def test_prometheus_takes_the_rules() -> None:
    done = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: `make system-packages`")
def test_alerts_fire_above_their_thresholds_and_not_below() -> None:
    done = subprocess.run(["promtool", "test", "rules", RULES.with_suffix(".test.yml")], capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tried_below_and_above_its_threshold() -> None:
    tried = RULES.with_suffix(".test.yml").read_text("utf-8")
    for rule in (*ALERTS.values(), *OF_ONE.values()):
        assert f"alertname: {rule.alert}, eval_time" in tried, rule.alert
        assert re.search(rf"alertname: {rule.alert}\n|alertname=\"{rule.alert}\"", tried), rule.alert
