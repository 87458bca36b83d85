"""References to secrets: `Ref`, of which a message contains the id only, and `secret://provider/path` in settings."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from cachetools import TTLCache

from todoku.core.errors import InvalidAct, InvalidMessage, InvalidSetting
from todoku.core.failure import DeliveryError
from todoku.core.secret_text import SECRET_SCHEME, secret_id, secret_ids, with_secrets
from todoku.core.signature import is_blank

# ------------------------------------------------------------
# The providers of secrets: the environment, a directory of files, entry points of installed packages, and servers.

Resolve = Callable[[str], str | Awaitable[str]]
"""Takes the part of an id behind the colon; returns the secret, or an awaitable of it."""

GROUP: Final = "todoku.secrets"
"""The entry point group: each entry point is a function that resolves the ids of the provider of its name."""

_OURS: Final = ("TODOKU_", "DATABASE_URL")
_SERVERS: Final = ("aws", "gcp", "vault")
_CACHED_FOR: Final = 60.0
"""Seconds for which the value of a `secret://` text is not asked for again."""
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
    """Returns the provider of that name from an installed package, or a server that todoku knows, if there is one."""
    for found in entry_points(group=GROUP, name=provider):
        resolve: Resolve = found.load()
        return resolve
    if provider not in _SERVERS:
        return None
    servers = import_module("todoku.engine.encryption.secret_managers")  # for those who use one
    known: Resolve = getattr(servers, f"resolve_{provider}")
    return known


_ID: Final = re.compile(r"(?P<provider>[A-Za-z][A-Za-z0-9_.-]{0,63}):(?P<path>[^\x00-\x1f\x7f]{1,1024})")
_LOCAL: Final = frozenset({"env", "file"})
_current: ContextVar[SecretSources | None] = ContextVar("todoku_secrets", default=None)


class EmptySecret(DeliveryError):
    """A provider returned an empty secret."""

    def __init__(self, called: str) -> None:
        super().__init__("SECRET_EMPTY", f"{called} is empty")


class SecretSources:
    """The providers of one App by name: `env`, `file`, registered ones, those of installed packages, and servers."""

    def __init__(self, directory: str | None = None) -> None:
        self._providers: dict[str, Resolve] = {"env": resolve_env, "file": directory_resolver(directory)}
        self._read: TTLCache[str, str] = TTLCache(maxsize=256, ttl=_CACHED_FOR)

    def add(self, provider: str, resolve: Resolve) -> None:
        """Registers the function that resolves ids beginning with `provider:`."""
        if not _ID.fullmatch(f"{provider}:x"):
            raise InvalidSetting(
                f"a provider cannot be called {provider!r}", hint="use letters and digits, as in vault"
            )
        if not callable(resolve):
            raise InvalidSetting(f"{resolve!r} is not callable", hint="pass a function of the id's path")
        if self._providers.get(provider, resolve) is not resolve:
            raise InvalidSetting(f"there are two providers called {provider!r}", hint="give one another name")
        self._providers[provider] = resolve

    def find(self, provider: str) -> Resolve:
        """Returns the provider of that name; ValueError if there is none."""
        if (known := self._providers.get(provider)) is not None:
            return known
        if (brought := find_entry_point(provider)) is None:
            known_ones = ", ".join(sorted({*self._providers, *_SERVERS}))
            raise ValueError(
                f"no provider of secrets is called {provider!r}; known: {known_ones}; add one by box.secrets(…)"
            )
        self._providers[provider] = brought
        return brought

    def filled(self, text: str) -> str:
        """As `afilled`; blocks as long as the providers do, wherever it is called."""
        with ThreadPoolExecutor(1) as beside:  # the caller may run an event loop, and a provider may need one
            return beside.submit(asyncio.run, self.afilled(text)).result()

    async def afilled(self, text: str) -> str:
        """Returns a text with the values of the secrets that it names (`secret://…`), cached for a minute.

        InvalidSetting: it names none that there could be. DeliveryError, or any error of a provider: there is no value.
        """
        return with_secrets(text, {id: await self._value(id) for id in secret_ids(text)})

    async def _value(self, id: str) -> str:
        if (known := self._read.get(id)) is not None:
            return known
        with self.near():
            try:
                ref = Ref(id)
            except ValueError as error:
                raise InvalidSetting(str(error)) from None
        self._read[id] = value = await ref.aget()
        return value

    @contextmanager
    def near(self) -> Iterator[None]:
        """Binds every Ref that is created or encoded within the block to these providers."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


_DEFAULT: Final = SecretSources()


class Ref:
    """A reference to a secret by its id, `provider:path`, which alone is stored. `get()` or `await aget()` reads it.

    An empty secret raises EmptySecret, a DeliveryError with the reason SECRET_EMPTY. Providers are `env`, `file` (below
    the setting `secrets_dir`), those registered by `box.secrets(name, resolve)`, entry points of the group
    `todoku.secrets`, and the servers `aws`, `gcp` and `vault`. The id may be written as `secret://provider/path`.
    """

    __slots__ = ("_secrets", "id")

    def __init__(self, id: str) -> None:
        if str(id).startswith(SECRET_SCHEME):
            id = secret_id(str(id))
        if _ID.fullmatch(str(id)) is None:
            raise InvalidMessage(
                "this is not the id of a secret", hint='use provider:path, for example Ref("env:SMTP_PASSWORD")'
            )
        self.id = str(id)
        self._secrets = _current.get()
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
        """Reads the secret. Blocks as long as its provider does."""
        resolve = self._resolve()
        if inspect.iscoroutinefunction(resolve):
            raise InvalidAct(f"the provider of {self.id} is async", hint="use await ref.aget()")
        return self._check(resolve(self._path))

    async def aget(self) -> str:
        """As `get`, for async code; a blocking provider runs in a thread."""
        resolve = self._resolve()
        if inspect.iscoroutinefunction(resolve):
            return self._check(await resolve(self._path))
        found = await asyncio.to_thread(resolve, self._path)
        return self._check(await found if inspect.isawaitable(found) else found)

    def encoded(self) -> str:
        """Returns the id, for the message. InvalidMessage if the App is known and has no such provider."""
        if (secrets := _current.get()) is not None:
            try:
                secrets.find(self._provider)
            except ValueError as error:
                raise InvalidMessage(f"{self.id}: {error}") from None
        return self.id

    @property
    def is_local(self) -> bool:
        """Whether its provider is on this machine (`env`, `file`), so that it can be read at startup."""
        return self._provider in _LOCAL

    @property
    def _provider(self) -> str:
        return self.id.partition(":")[0]

    @property
    def _path(self) -> str:
        return self.id.partition(":")[2]

    def _resolve(self) -> Resolve:
        try:
            return (self._secrets or _DEFAULT).find(self._provider)
        except ValueError as error:
            raise InvalidSetting(
                str(error), hint="register the provider with box.secrets(…), or use the Ref that the handler received"
            ) from None

    def _check(self, value: object) -> str:
        if not isinstance(value, str):
            raise InvalidSetting(
                f"the provider of {self.id} returned {type(value).__name__}", hint="it must return a str"
            )
        if is_blank(value):
            raise EmptySecret(self.id)
        return value

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        """Makes pydantic models read a Ref from its id, and write it as its id."""
        from pydantic_core import core_schema  # noqa: PLC0415 - installed, because pydantic calls this

        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, Ref) else cls(value),
            serialization=core_schema.plain_serializer_function_ser_schema(cls.encoded),
        )
