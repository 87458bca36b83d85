"""Finds and imports the App that a daemon runs: `module:attribute`, by argument, setting or `pyproject.toml`."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

from todoku.app import App, load_settings
from todoku.core.errors import InvalidSetting

_HINT = "write module:attribute, for example shop:box"


def find_app_name(given: str | None = None) -> str | None:
    """The App's name: `given`, else TODOKU_APP, `todoku.toml` or `[tool.todoku] app`. None: it is set nowhere."""
    return given or load_settings().app or _from_pyproject(Path("pyproject.toml"))


def _from_pyproject(file: Path) -> str | None:
    try:
        stored = tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}
    except (OSError, ValueError) as error:
        raise InvalidSetting(f"pyproject.toml cannot be read: {error}", hint="fix the file, or pass --app") from error
    name = stored.get("tool", {}).get("todoku", {}).get("app")
    if name is not None and not isinstance(name, str):
        raise InvalidSetting("[tool.todoku] app in pyproject.toml is not a string", hint=_HINT)
    return name


def load_app(name: str) -> App:
    """Imports `module:attribute`, also from the current directory. InvalidSetting: it is not an App, or fails."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise InvalidSetting(f"{name!r} does not name an App", hint=_HINT)
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.insert(0, str(Path.cwd()))
    found: object = _import_module(name, module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InvalidSetting(f"module {module} has no {attribute!r}", hint=_HINT)
        found = getattr(found, part)
    if not isinstance(found, App):
        raise InvalidSetting(f"{name} is a {type(found).__name__}, not a todoku.App", hint=_HINT)
    return found


def _import_module(name: str, module: str) -> object:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise InvalidSetting(
                f"cannot import the app {name}: there is no module {module!r}",
                hint="run the command in the module's directory, or set PYTHONPATH",
            ) from error
        raise _import_error(name, module, error) from error
    except Exception as error:  # the user's module may raise anything; it is reported in one line
        raise _import_error(name, module, error) from error


def _import_error(name: str, module: str, error: Exception) -> InvalidSetting:
    return InvalidSetting(
        f"cannot import the app {name}: {type(error).__name__}: {error}",
        hint=f'run python -c "import {module}" to see where',
    )
