"""`Ref`: a secret that stays where it is. The message has its id; the handler asks for the value when it needs it."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from todoku.core.blank_secret import is_blank
from todoku.core.errors import InvalidAct, InvalidMessage, InvalidSetting
from todoku.core.failure import DeliveryError
from todoku.engine.encryption.secret_providers import Resolve, of_directory, of_entry_point, of_environment

_ID: Final = re.compile(r"(?P<provider>[A-Za-z][A-Za-z0-9_.-]{0,63}):(?P<path>[^\x00-\x1f\x7f]{1,1024})")
_LOCAL: Final = frozenset({"env", "file"})
_near: ContextVar[SecretSources | None] = ContextVar("todoku_secrets", default=None)


class EmptySecret(DeliveryError):
    """A provider answered, and there is nothing in its answer. It was asked for a secret, and this is none."""

    def __init__(self, called: str) -> None:
        super().__init__("SECRET_EMPTY", f"{called} is empty")


class SecretSources:
    """The providers of one App, by name: `env`, `file`, those it registered, those that packages bring."""

    def __init__(self, directory: str | None = None) -> None:
        self._providers: dict[str, Resolve] = {"env": of_environment, "file": of_directory(directory)}

    def add(self, provider: str, resolve: Resolve) -> None:
        """Resolve ids that begin with `provider:` by this function."""
        if not _ID.fullmatch(f"{provider}:x"):
            raise InvalidSetting(f"a provider cannot be called {provider!r}", hint="letters and digits, like vault")
        if not callable(resolve):
            raise InvalidSetting(f"{resolve!r} resolves nothing", hint="pass a function of the id's path")
        if self._providers.get(provider, resolve) is not resolve:
            raise InvalidSetting(f"there are two providers called {provider!r}", hint="give one another name")
        self._providers[provider] = resolve

    def find(self, provider: str) -> Resolve:
        """The provider of that name; ValueError: there is none."""
        if (known := self._providers.get(provider)) is not None:
            return known
        if (brought := of_entry_point(provider)) is None:
            known_ones = ", ".join(sorted(self._providers))
            raise ValueError(f"no provider of secrets is called {provider!r}; known: {known_ones}; or box.secrets(…)")
        self._providers[provider] = brought
        return brought

    @contextmanager
    def near(self) -> Iterator[None]:
        """While the block runs, a Ref that is made or encoded here belongs to these."""
        token = _near.set(self)
        try:
            yield
        finally:
            _near.reset(token)


_ANYWHERE: Final = SecretSources()


class Ref:
    """A secret by its id, `provider:path`: all that is stored of it. `get()` or `await aget()` asks for the value.

    One that is empty is none: EmptySecret, a DeliveryError with the reason SECRET_EMPTY.
    Providers are `env`, `file` (below the setting `secrets_dir`), what `box.secrets(name, resolve)` registered, and
    entry points of the group `todoku.secrets`.
    """

    __slots__ = ("_secrets", "id")

    def __init__(self, id: str) -> None:
        if _ID.fullmatch(str(id)) is None:
            raise InvalidMessage(
                "this is no id of a secret", hint='provider:path, for example Ref("env:SMTP_PASSWORD")'
            )
        self.id = str(id)
        self._secrets = _near.get()
        if self._secrets is not None:
            self._secrets.find(self._provider)

    def __repr__(self) -> str:
        return f"Ref({self.id!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and other.id == self.id

    def __hash__(self) -> int:
        return hash((Ref, self.id))

    def __copy__(self) -> Ref:
        return self

    def __deepcopy__(self, _memo: object) -> Ref:
        return self

    def __reduce__(self) -> tuple[type[Ref], tuple[str]]:
        return Ref, (self.id,)

    def get(self) -> str:
        """The secret, now. Blocks for as long as its provider does."""
        resolve = self._resolve()
        if inspect.iscoroutinefunction(resolve):
            raise InvalidAct(f"the provider of {self.id} is async", hint="await ref.aget()")
        return self._checked(resolve(self._path))

    async def aget(self) -> str:
        """As `get`, for async code; a blocking provider runs in a thread."""
        resolve = self._resolve()
        if inspect.iscoroutinefunction(resolve):
            return self._checked(await resolve(self._path))
        found = await asyncio.to_thread(resolve, self._path)
        return self._checked(await found if inspect.isawaitable(found) else found)

    def encoded(self) -> str:
        """The id, for the message; refused where the App is at hand and has no such provider."""
        if (secrets := _near.get()) is not None:
            try:
                secrets.find(self._provider)
            except ValueError as error:
                raise InvalidMessage(f"{self.id}: {error}") from None
        return self.id

    @property
    def is_local(self) -> bool:
        """Whether it is read on this machine, so that it can be asked for at once: `env`, `file`."""
        return self._provider in _LOCAL

    @property
    def _provider(self) -> str:
        return self.id.partition(":")[0]

    @property
    def _path(self) -> str:
        return self.id.partition(":")[2]

    def _resolve(self) -> Resolve:
        try:
            return (self._secrets or _ANYWHERE).find(self._provider)
        except ValueError as error:
            raise InvalidSetting(str(error), hint="a handler's own Ref knows the providers of its App") from None

    def _checked(self, value: object) -> str:
        if not isinstance(value, str):
            raise InvalidSetting(f"the provider of {self.id} gave {type(value).__name__}", hint="it must return text")
        if is_blank(value):
            raise EmptySecret(self.id)
        return value

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        """In a pydantic model: validated from its id, and written as it."""
        from pydantic_core import core_schema  # noqa: PLC0415 - there, because pydantic asks

        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, Ref) else cls(value),
            serialization=core_schema.plain_serializer_function_ser_schema(cls.encoded),
        )
