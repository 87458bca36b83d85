"""Options of a destination that may name secrets (`secret://…`). They are read when they are needed, never before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from todoku.core.destination import FillSecrets
from todoku.core.errors import TodokuError
from todoku.core.failure import DeliveryError
from todoku.core.secret_text import names_secret


async def _without_app(_text: str) -> str:
    raise DeliveryError("SECRET_UNAVAILABLE", "a destination reads secrets once a route of an App leads to it")


class SecretOptions:
    """Fills texts, and the texts in mappings and lists, with the secrets that they name."""

    def __init__(self) -> None:
        self._fill: FillSecrets = _without_app
        self.used = False
        """Whether a secret was filled in: from then on, an error of the client library may quote it."""

    def use(self, fill: FillSecrets) -> None:
        """Takes what reads the secrets of the App."""
        self._fill = fill

    async def filled(self, option: Any) -> Any:
        """Returns an option with its secrets. DeliveryError names the secret, and contains nothing of it."""
        match option:
            case str() if names_secret(option):
                return await self._filled(option)
            case Mapping():
                return {name: await self.filled(value) for name, value in option.items()}
            case list() | tuple():
                return [await self.filled(value) for value in option]
            case _:
                return option

    async def _filled(self, text: str) -> str:
        self.used = True
        try:
            return await self._fill(text)
        except DeliveryError:
            raise
        except TodokuError as error:
            raise DeliveryError("SECRET_UNAVAILABLE", str(error)) from None
        except Exception as error:  # noqa: BLE001 - the provider is the user's code; its text may contain anything
            raise DeliveryError("SECRET_UNAVAILABLE", f"the provider raised {type(error).__name__}") from None
