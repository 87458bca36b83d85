"""The settings of this process: arguments, environment, `todoku.toml`, and the files and servers that hold secrets."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from todoku.core.alert import SECRET_ALERTS
from todoku.core.errors import InvalidSetting, TodokuError
from todoku.core.failure import DeliveryError
from todoku.core.secret_text import names_secret
from todoku.core.settings import FILE, Settings, check_settings, find_origins, gather_settings
from todoku.engine.encryption.secret_ref import SecretSources


def load_settings(**given: object) -> Settings:
    """Reads the settings of this process: arguments go before the environment, and that before `todoku.toml`."""
    _last_file.clear()
    _last_file.update(_read_file())
    return _load(_last_file, **given)


_last_file: Final[dict[str, object]] = {}
"""`todoku.toml` as this process read it last: `describe_settings` must not take a later edit for what is in force."""


def _read_file() -> dict[str, object]:
    file = Path(FILE)
    try:
        return tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}
    except (OSError, ValueError) as error:  # no permission, not UTF-8, not TOML
        raise InvalidSetting(f"todoku.toml cannot be read: {error}", hint="correct it, or move it away") from error


def _load(file: Mapping[str, object], **given: object) -> Settings:
    values = gather_settings(_with_secret_files(os.environ), file, **given)
    directory = values.get("secrets_dir")
    for name in _MAY_BE_SECRET & values.keys():
        values[name] = read_secret(name, values[name], None if directory is None else str(directory))
    return check_settings(values)


def find_setting_origins() -> tuple[dict[str, str], Settings]:
    """Returns where each setting of this process comes from, and the settings that it would have without arguments."""
    environ = _with_secret_files(os.environ)
    origins = find_origins(environ, _last_file)
    named = {name: f"{variable}_FILE" for name, variable in origins.items() if os.environ.get(f"{variable}_FILE")}
    return origins | named, _load(_last_file)


_SECRETS: Final = (
    "TODOKU_DATABASE", "DATABASE_URL", "TODOKU_MASTER_KEYS", "TODOKU_TOKEN", "TODOKU_SIGNING_KEYS",
    "TODOKU_OIDC_CLIENT_SECRET",
)  # fmt: skip


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


_MAY_BE_SECRET: Final = {"database", "master_keys", "token", "signing_keys", "oidc_client_secret"} | {
    name.removeprefix("TODOKU_").lower() for name in SECRET_ALERTS
}
_DATABASE: Final = re.compile(r"(sqlite|postgres(ql)?(\+\w+)?)://")
_sources = lru_cache(maxsize=8)(SecretSources)


def read_secret(name: str, value: object, directory: str | None = None) -> object:
    """Returns the value of a setting, or of another option that may be a secret, with what `secret://` names in it.

    `directory`: the setting `secrets_dir`. InvalidSetting, which names the option and the secret and never a value.
    """
    if isinstance(value, list | tuple):
        return [read_secret(name, item, directory) for item in value]
    if not isinstance(value, str) or not names_secret(value):
        return value
    try:
        found = _sources(directory).filled(value)
    except DeliveryError as error:
        raise InvalidSetting(f"{name}: {error.detail}", hint="docs/encryption.md, secret://") from None
    except TodokuError as error:
        raise InvalidSetting(f"{name}: {error}") from None
    except Exception as error:  # noqa: BLE001 - the provider is the user's code; its text may contain anything
        raise InvalidSetting(
            f"{name}: its provider raised {type(error).__name__}", hint="call the provider yourself with this path"
        ) from None
    if name == "database" and not _DATABASE.match(found):  # an error further on would quote it
        raise InvalidSetting(
            "database: the secret that it names is not the URL of a database",
            hint="store sqlite:///… or postgresql://…, or write postgresql://user:{secret://…}@host/name",
        )
    return found
