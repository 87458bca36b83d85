"""The files of deploy/, parsed, and what of the product they have to agree with."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import yaml

from todoku.core.alert import ALERT_SETTINGS
from todoku.core.settings import ALSO_READ_FROM, Settings
from todoku.daemon.supervisor import CLEANUP_SEC, MARGIN
from todoku.engine.process_settings import _SECRETS

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DEFAULTS = Settings()

STOPS_WITHIN = DEFAULTS.drain_grace_sec + MARGIN + CLEANUP_SEC
"""Seconds after SIGTERM within which a daemon has ended whatever its handlers do: a platform waits for longer."""


def documents(path: Path) -> list[Any]:
    """The documents of a YAML file."""
    return [found for found in yaml.safe_load_all(path.read_text("utf-8")) if found is not None]


def variables() -> set[str]:
    """Every name of a setting in the environment."""
    own = {f"TODOKU_{name.upper()}" for name in (*Settings.__struct_fields__, *ALERT_SETTINGS)}
    others = {other for names in ALSO_READ_FROM.values() for other in names}
    return own - {"TODOKU_BACKOFF", "TODOKU_ALERTS"} | {"TODOKU_BACKOFF_SEC"} | others | {f"{s}_FILE" for s in _SECRETS}


def named_variables(text: str) -> set[str]:
    """The names of todoku's settings in a file, whatever its language."""
    return set(re.findall(r"\b(?:TODOKU|OUTBOX)_[A-Z][A-Z0-9_]+\b", text))


def tool(name: str) -> str | None:
    """Where a program is: on the path, or where `make` puts it."""
    return shutil.which(name) or shutil.which(str(ROOT / ".cache" / "bin" / name))
