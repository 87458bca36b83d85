"""Amazon SQS, standard and FIFO: ten messages per request, each with its own result."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from importlib import import_module
from typing import Any, Final, NamedTuple, Unpack

import msgspec

from todoku.core.cloudevents import IDEMPOTENCY_KEY, MESSAGE_ID
from todoku.core.errors import InvalidSetting
from todoku.core.failure import DeliveryError, Reasons
from todoku.destinations.broker import Broker, BrokerOptions, CheckedBrokerOptions, Parcel, check_options, run_all

_AT_ONCE: Final = 10
_REQUEST_BYTES: Final = 256 << 10
"""The original limit of SQS; not every region and emulator has a higher one."""

_ATTRIBUTES: Final = (MESSAGE_ID, IDEMPOTENCY_KEY, "traceparent", "content-type")
_CLOUDEVENTS: Final = ("ce-specversion", "ce-id", "ce-source", "ce-type", "ce-time")
"""Together with `headers`, which contains all headers as JSON, these are ten attributes, the limit of a message."""

_TEXT: Final = re.compile(r"[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
_ID: Final = re.compile(r"[\w!\"#$%&'()*+,./:;<=>?@\[\\\]^`{|}~-]{1,128}", re.ASCII)


class SqsConnection(NamedTuple):
    """A client, and the stack that closes it."""

    client: Any
    closing: AsyncExitStack


class Sqs(Broker[SqsConnection]):
    """Sends to a queue. A FIFO queue preserves the order of a key (its group) and drops duplicates for five minutes."""

    module = "aiobotocore"
    extra = "sqs"

    def __init__(
        self, queue_url: str, region: str | None, endpoint_url: str | None, options: CheckedBrokerOptions
    ) -> None:
        super().__init__(options)
        if "://" not in queue_url:
            raise InvalidSetting(
                f"queue_url cannot be {queue_url!r}", hint="give the queue's URL: https://sqs.…/123/orders"
            )
        self._queue_url = queue_url
        self._fifo = queue_url.endswith(".fifo")
        self._arguments = {"region_name": region, "endpoint_url": endpoint_url}

    async def _connect(self) -> SqsConnection:
        # The client must not retry: the time limit is for one request, and the worker retries.
        config = self.library("config").AioConfig(
            connect_timeout=self._seconds, read_timeout=self._seconds, retries={"total_max_attempts": 1}
        )
        closing = AsyncExitStack()
        arguments = {**self._arguments, "config": config, **await self._secrets.filled(self._options.client)}
        session = self.library("session").get_session()
        client = await closing.enter_async_context(session.create_client("sqs", **arguments))
        return SqsConnection(client, closing)

    def _is_lost(self, _connection: SqsConnection) -> bool:
        return False  # the client is a pool: each request takes or opens a connection

    async def _publish(self, connection: SqsConnection, parcels: Sequence[Parcel]) -> None:
        if self._fifo:
            for request in _requests(parcels):
                await self._request(connection, request)
        else:
            await run_all(self._request(connection, request) for request in _requests(parcels))

    async def _request(self, connection: SqsConnection, parcels: Sequence[Parcel]) -> None:
        entries = [self._entry(str(place), parcel) for place, parcel in enumerate(parcels)]
        answer = await connection.client.send_message_batch(QueueUrl=self._queue_url, Entries=entries)
        for entry in answer.get("Successful", ()):
            parcels[int(entry["Id"])].arrived()
        for entry in answer.get("Failed", ()):
            code, text = entry.get("Code", ""), entry.get("Message", "")
            failed = DeliveryError("BROKER_REJECTED", f"{code}: {text}", retryable=not entry.get("SenderFault", False))
            parcels[int(entry["Id"])].outcome = self.outcome_of(failed)

    def _entry(self, id: str, parcel: Parcel) -> dict[str, Any]:
        message, found = parcel.message, parcel.headers
        attributes = {name: found[name] for name in (*_ATTRIBUTES, *_CLOUDEVENTS) if found.get(name)}
        attributes["headers"] = msgspec.json.encode(found).decode()
        body, is_text = _body(message.payload)
        if not is_text:
            del attributes["ce-specversion"]  # in base64 the body is not the data of a CloudEvent
            attributes["todoku-encoding"] = "base64"
        entry = {
            "Id": id,
            "MessageBody": body,
            "MessageAttributes": {
                name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
            },
        }
        if self._fifo:
            entry["MessageGroupId"] = _id(message.key if message.key is not None else message.message_id)
            entry["MessageDeduplicationId"] = _id(message.idempotency_key)
        return entry

    def _size(self, _connection: SqsConnection, parcel: Parcel) -> tuple[int, int]:
        return _sent_bytes(parcel), self._options.max_bytes

    async def _ping(self, connection: SqsConnection) -> None:
        # The credentials may allow sending only; a refusal shows that the service answers, too.
        with suppress(import_module("botocore.exceptions").ClientError):
            await connection.client.get_queue_attributes(QueueUrl=self._queue_url, AttributeNames=["QueueArn"])

    async def _close(self, connection: SqsConnection) -> None:
        await connection.closing.aclose()

    def outcome_of(self, error: Exception) -> Any:
        """See `Broker`. An error response of SQS is classified by its code and status."""
        if (response := getattr(error, "response", None)) is not None:
            error = _refused(response)
        return super().outcome_of(error)

    def _client_reasons(self) -> Reasons:
        exceptions = import_module("botocore.exceptions")  # comes with the client library
        return {
            exceptions.BotoCoreError: ("BROKER_DOWN", True),
            exceptions.HTTPClientError: ("BROKER_DOWN", True),
            exceptions.ConnectTimeoutError: ("BROKER_TIMEOUT", True),
            exceptions.ReadTimeoutError: ("BROKER_TIMEOUT", True),
            exceptions.NoCredentialsError: ("BROKER_DENIED", True),
            exceptions.PartialCredentialsError: ("BROKER_DENIED", True),
            exceptions.ParamValidationError: ("BROKER_REJECTED", False),
        }


_DENIED: Final = ("AccessDenied", "InvalidClientTokenId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidSecurity")


def _refused(response: dict[str, Any]) -> DeliveryError:
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    code = str(response.get("Error", {}).get("Code", ""))
    text = f"{code}: {response.get('Error', {}).get('Message', '')}"
    if "NonExistentQueue" in code or "QueueDoesNotExist" in code:
        return DeliveryError("UNROUTABLE", text)
    if any(word in code for word in _DENIED):
        return DeliveryError("BROKER_DENIED", text)
    if status >= 500 or "Throttl" in code:
        return DeliveryError("BROKER_DOWN", text)
    return DeliveryError("BROKER_REJECTED", text, retryable=False)


def _body(payload: bytes) -> tuple[str, bool]:
    """Returns the payload as text that SQS accepts, and whether it is the payload itself and not its base64."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = ""
    if _TEXT.fullmatch(text):
        return text, True
    return base64.b64encode(payload).decode(), False


def _id(text: str) -> str:
    """Returns a group or deduplication id: the text, or its hash if it has other characters or is too long."""
    return text if _ID.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()


def _sent_bytes(parcel: Parcel) -> int:
    """Returns the size of a message as SQS counts it. Base64 adds a third, and headers are sent twice: as attributes,
    and together as JSON."""
    payload = len(parcel.message.payload)
    return (payload * 4 // 3 + 4 if not _body(parcel.message.payload)[1] else payload) + 2 * (parcel.size - payload)


def _requests(parcels: Sequence[Parcel]) -> Iterator[list[Parcel]]:
    """Splits messages into requests of at most ten messages and `_REQUEST_BYTES`."""
    request: list[Parcel] = []
    size = 0
    for parcel in parcels:
        bytes_ = _sent_bytes(parcel)
        if request and (len(request) == _AT_ONCE or size + bytes_ > _REQUEST_BYTES):
            yield request
            request, size = [], 0
        request.append(parcel)
        size += bytes_
    if request:
        yield request


def sqs(
    queue_url: str,
    *,
    region: str | None = None,
    endpoint_url: str | None = None,
    **given: Unpack[BrokerOptions],
) -> Sqs:
    """Creates a destination on a queue of Amazon SQS, given its URL. A queue whose name ends in `.fifo` preserves the
    order of a key.

    The default credentials of AWS apply. `client`: further arguments of `create_client`.
    """
    address = queue_url.rpartition("/")[2]
    return Sqs(queue_url, region, endpoint_url, check_options("sqs", address, given, max_bytes=256 << 10))
