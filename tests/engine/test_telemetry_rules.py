"""The alert rules that are shipped: every threshold of DESIGN §8, over metrics that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from todoku.engine.telling.exposition import GAUGES
from todoku.engine.telling.metrics import COUNTERS, HISTOGRAMS

RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "todoku.rules.yml"
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
ALERTS = {rule.labels["threshold"]: rule for rule in rules() if rule.alert}


def test_every_threshold_of_the_design_has_an_alert_with_its_default() -> None:
    """`for` of the age of dead letters, the number behind the last comparison of all others."""
    thresholds = {name: float(re.findall(r"> ([0-9.]+)", rule.expr)[-1]) for name, rule in ALERTS.items()}
    assert thresholds == {
        "dead_letters": 0,
        "dead_letter_age": 0,
        "dead_letter_inflow": 0,
        "publish_failure_ratio": 0.01,
        "handler_error_ratio": 0.005,
        "retry_ratio": 0.01,
        "oldest_age": 60,
        "lag": 10_000,
        "stuck": 0,
        "e2e_p95": 10,
    }
    assert ALERTS["dead_letter_age"].lasts == "24h"
    assert "[5m]" in ALERTS["dead_letter_inflow"].expr


def test_every_alert_says_what_happened_and_what_to_do() -> None:
    for rule in ALERTS.values():
        assert rule.alert.startswith("Todoku"), rule
        assert rule.annotations.keys() == {"summary", "action"}, rule
        assert rule.labels["severity"] in ("warning", "critical"), rule


def test_the_service_levels_are_recorded() -> None:
    assert "(1 - 0.999)" in RECORDED["todoku:publish_budget_left:ratio30d"].expr
    assert "(1 - 0.995)" in RECORDED["todoku:handler_budget_left:ratio30d"].expr


def test_rules_ask_for_metrics_and_labels_that_exist() -> None:
    labels = {metric.name: (metric.label, metric.known) for metric in COUNTERS} | dict.fromkeys(GAUGES, (None, ()))
    labels |= {f"{metric.name}_bucket": (metric.label, ()) for metric in HISTOGRAMS}
    asked = set()
    for rule in rules():
        assert rule.expr.count("(") == rule.expr.count(")"), rule
        for name, selector in re.findall(
            r"\b((?:outbox|idempo|idempotency|queue|destination)_\w+)(\{[^}]*\})?", rule.expr
        ):
            label, known = labels[name]
            asked.add(name)
            for used, values in re.findall(r'(\w+)(?:=~|!=|=)"([^"]*)"', selector):
                assert used == label, rule
                assert set(values.split("|")) <= set(known), rule
        for name in re.findall(r"\btodoku:[\w:]+", rule.expr):
            assert name in RECORDED, rule
    assert len(asked) > 7


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_takes_the_rules() -> None:
    done = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
