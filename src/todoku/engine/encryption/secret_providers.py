"""The providers of secrets: the environment, a directory of files, and entry points of installed packages."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from todoku.core.failure import DeliveryError

Resolve = Callable[[str], str | Awaitable[str]]
"""Takes the part of an id behind the colon; returns the secret, or an awaitable of it."""

GROUP: Final = "todoku.secrets"
"""The entry point group: each entry point is a function that resolves the ids of the provider of its name."""

_OURS: Final = ("TODOKU_", "DATABASE_URL")
_LARGEST: Final = 1 << 20


def resolve_env(name: str) -> str:
    """Resolves `Ref("env:NAME")` from the environment. todoku's own variables are refused."""
    if name.startswith(_OURS):
        raise DeliveryError("SECRET_REFUSED", f"env:{name} is a setting of todoku", retryable=False)
    if (value := os.environ.get(name)) is None:
        raise DeliveryError("SECRET_NOT_FOUND", f"env:{name} is not set in this process")
    return value


def directory_resolver(directory: str | None) -> Resolve:
    """Returns a resolver of `Ref("file:path")`: a file below `secrets_dir`, without its last line break."""

    def of_file(path: str) -> str:
        if directory is None:
            raise DeliveryError("SECRET_NOT_FOUND", f"file:{path} needs the setting secrets_dir")
        root = Path(directory).resolve()
        file = (root / path).resolve()
        if not file.is_relative_to(root) or file == root:
            raise DeliveryError("SECRET_REFUSED", f"file:{path} is outside of secrets_dir", retryable=False)
        try:
            with file.open(encoding="utf-8") as opened:
                return opened.read(_LARGEST).removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise DeliveryError("SECRET_NOT_FOUND", f"file:{path}: {type(error).__name__}") from None

    return of_file


def find_entry_point(provider: str) -> Resolve | None:
    """Returns the provider of that name from an installed package, if there is one."""
    for found in entry_points(group=GROUP, name=provider):
        resolve: Resolve = found.load()
        return resolve
    return None
