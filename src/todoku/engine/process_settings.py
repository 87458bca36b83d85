"""The settings of this process: arguments, environment, `todoku.toml`, and files that hold secrets."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from todoku.core.alert import SECRET_ALERTS
from todoku.core.errors import InvalidSetting
from todoku.core.settings import Settings, read_settings


def load_settings(**given: object) -> Settings:
    """Reads the settings of this process: arguments go before the environment, and that before `todoku.toml`."""
    file = Path("todoku.toml")
    try:
        stored = tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}
    except (OSError, ValueError) as error:  # no permission, not UTF-8, not TOML
        raise InvalidSetting(f"todoku.toml cannot be read: {error}", hint="correct it, or move it away") from error
    return read_settings(_with_secret_files(os.environ), stored, **given)


_SECRETS: Final = ("TODOKU_DATABASE", "DATABASE_URL", "TODOKU_MASTER_KEYS", "TODOKU_TOKEN", "TODOKU_SIGNING_KEYS")


def _with_secret_files(environ: Mapping[str, str]) -> dict[str, str]:
    """Reads each secret NAME from the file that NAME_FILE names, which is how containers get secrets."""
    read = dict(environ)
    for name in (*_SECRETS, *SECRET_ALERTS):
        if path := environ.get(f"{name}_FILE"):
            try:
                read[name] = Path(path).read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidSetting(f"{name}_FILE cannot be read: {error}", hint="does the file exist?") from error
    return read
