"""The version of the todoku that runs."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def installed_version() -> str:
    """Returns the version of the installed package; "0" in a checkout that is not installed."""
    try:
        return version("todoku")
    except PackageNotFoundError:
        return "0"
