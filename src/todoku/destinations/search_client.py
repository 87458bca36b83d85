"""Requests to OpenSearch and Elasticsearch by their official clients, with one kind of error.

The clients bring connections, TLS, authentication and their own options. They never repeat a request here: todoku does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, Final, Protocol

from todoku.core.errors import InvalidSetting
from todoku.core.failure import DeliveryError

_NDJSON: Final = {"content-type": "application/x-ndjson", "accept": "application/json"}
_JSON: Final = {"content-type": "application/json", "accept": "application/json"}
_TEXT: Final = 300


class SearchError(DeliveryError):
    """The server refused a whole request: its status, and the kind of its error."""

    def __init__(self, status: int, kind: str, text: str) -> None:
        reason, retryable = _reason(status, kind)
        super().__init__(reason, f"HTTP {status}, {kind}: {text}"[:_TEXT], retryable=retryable)
        self.status = status
        self.kind = kind


def _reason(status: int, kind: str) -> tuple[str, bool]:
    """Returns the reason of a refused request, and whether another attempt may succeed."""
    if "block" in kind:
        return "SEARCH_BLOCKED", True
    match status:
        case 429:
            return "SEARCH_BUSY", True
        case 401 | 403:
            return "SEARCH_DENIED", True
        case 404:
            return "SEARCH_MISSING", True
        case 413:
            return "TOO_LARGE", False
        case _ if status >= 500:
            return "SEARCH_FAILED", True
        case _:
            return "SEARCH_REJECTED", False


class Client(Protocol):
    """Sends requests. DeliveryError: the server does not answer. SearchError: it refuses."""

    async def request(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, body: Any = None, lines: bool = False
    ) -> Any:
        """Returns the decoded answer. `lines`: the body is lines of JSON, encoded."""

    async def close(self) -> None:
        """Closes its connections."""


class OpenSearchClient:
    """opensearch-py."""

    module: ClassVar[str] = "opensearchpy"
    extra: ClassVar[str] = "opensearch"

    def __init__(self, hosts: Sequence[str], timeout: float, options: Mapping[str, Any]) -> None:
        self._errors = import_module("opensearchpy.exceptions")
        given = {"timeout": timeout, "max_retries": 0, "retry_on_timeout": False, **options}
        self._client = import_module(self.module).AsyncOpenSearch(hosts=list(hosts), **given)

    async def request(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, body: Any = None, lines: bool = False
    ) -> Any:
        """Sends a request through the client's transport."""
        try:
            return await self._client.transport.perform_request(
                method, path, params=dict(params or {}), body=body, headers=_NDJSON if lines else _JSON
            )
        except self._errors.ConnectionTimeout as error:
            raise DeliveryError("SEARCH_TIMEOUT", f"no answer in time: {type(error).__name__}") from None
        except self._errors.ConnectionError as error:
            raise DeliveryError("SEARCH_DOWN", f"{type(error).__name__}: {error.error}"[:_TEXT]) from None
        except self._errors.TransportError as error:
            raise SearchError(int(error.status_code), *_named(error.error, error.info)) from None
        except self._errors.SerializationError as error:
            raise DeliveryError("SEARCH_FAILED", f"its answer is not JSON: {type(error).__name__}") from None

    async def close(self) -> None:
        """Closes the client."""
        await self._client.close()


class ElasticsearchClient:
    """elasticsearch-py."""

    module: ClassVar[str] = "elasticsearch"
    extra: ClassVar[str] = "elasticsearch"

    def __init__(self, hosts: Sequence[str], timeout: float, options: Mapping[str, Any]) -> None:
        self._errors = import_module("elasticsearch.exceptions")
        given = {"request_timeout": timeout, "max_retries": 0, "retry_on_timeout": False, **options}
        self._client = import_module(self.module).AsyncElasticsearch(hosts=list(hosts), **given)

    async def request(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, body: Any = None, lines: bool = False
    ) -> Any:
        """Sends a request through the client."""
        headers = _NDJSON if lines else _JSON
        if body is None:
            headers = {"accept": _JSON["accept"]}
        try:
            answer = await self._client.perform_request(method, path, params=params, headers=headers, body=body)
        except self._errors.ConnectionTimeout as error:
            raise DeliveryError("SEARCH_TIMEOUT", f"no answer in time: {type(error).__name__}") from None
        except self._errors.UnsupportedProductError:
            text = "this is no Elasticsearch: for OpenSearch use todoku.opensearch"
            raise DeliveryError("SEARCH_DENIED", text) from None
        except self._errors.ApiError as error:
            raise SearchError(int(error.status_code), *_named(error.error, error.body)) from None
        except self._errors.TransportError as error:
            raise DeliveryError("SEARCH_DOWN", f"{type(error).__name__}: {error.message}"[:_TEXT]) from None
        return answer.body

    async def close(self) -> None:
        """Closes the client."""
        await self._client.close()


def check_installed(kind: type[OpenSearchClient] | type[ElasticsearchClient]) -> None:
    """Raises InvalidSetting if the client library is not installed."""
    try:
        import_module(kind.module)
    except ImportError as error:
        raise InvalidSetting(
            f"todoku.{kind.extra} needs its client library: {error}", hint=f'pip install "todoku[{kind.extra}]"'
        ) from error


def _named(kind: object, body: object) -> tuple[str, str]:
    """Returns the kind of an error and its text, from the body of an answer."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if isinstance(error, Mapping):
        return str(error.get("type") or kind), str(error.get("reason") or "")
    return str(kind), str(error or "")
