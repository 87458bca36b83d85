"""Finding the App that a daemon runs: `module:attribute`, by argument, setting or `pyproject.toml`."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

from todoku.app import App, load_settings
from todoku.core.errors import InvalidSetting

_HINT = "name it as module:attribute, for example shop:box"


def named_app(given: str | None = None) -> str | None:
    """The name of the App: as given, or TODOKU_APP, or `todoku.toml`, or `[tool.todoku] app`; None: nobody said."""
    return given or load_settings().app or _from_pyproject(Path("pyproject.toml"))


def _from_pyproject(file: Path) -> str | None:
    try:
        stored = tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}
    except (OSError, ValueError) as error:
        raise InvalidSetting(f"pyproject.toml cannot be read: {error}", hint="mend it, or pass --app") from error
    name = stored.get("tool", {}).get("todoku", {}).get("app")
    if name is not None and not isinstance(name, str):
        raise InvalidSetting("[tool.todoku] app in pyproject.toml is no text", hint=_HINT)
    return name


def load_app(name: str) -> App:
    """Import `module:attribute`, also from the current directory; InvalidSetting says what is wrong with it."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise InvalidSetting(f"{name!r} does not name an App", hint=_HINT)
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.insert(0, str(Path.cwd()))
    found: object = _imported(name, module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InvalidSetting(f"module {module} has no {attribute!r}", hint=_HINT)
        found = getattr(found, part)
    if not isinstance(found, App):
        raise InvalidSetting(f"{name} is a {type(found).__name__}, not a todoku.App", hint=_HINT)
    return found


def _imported(name: str, module: str) -> object:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise InvalidSetting(
                f"there is no module {module!r} here, for the app {name}",
                hint="start in the directory it is in, or set PYTHONPATH",
            ) from error
        raise _broken(name, module, error) from error
    except Exception as error:  # it is the user's module: whatever it raises is told in one line
        raise _broken(name, module, error) from error


def _broken(name: str, module: str, error: Exception) -> InvalidSetting:
    return InvalidSetting(
        f"the app {name} cannot be imported: {type(error).__name__}: {error}",
        hint=f'python -c "import {module}" shows where',
    )
