"""Google Pub/Sub: published with the key as ordering key, confirmed by the service."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, Unpack

from todoku.core.errors import InvalidSetting
from todoku.core.failure import Reasons
from todoku.destinations.broker import Broker, BrokerOptions, CheckedBrokerOptions, Parcel, check_options

_PARAMETERS: Final = frozenset({"topic", "data", "ordering_key", "retry", "timeout"})
"""Parameters of `publish`, which therefore cannot be names of attributes."""


class Pubsub(Broker[Any]):
    """Publishes to a topic. Subscriptions with message ordering receive the messages of a key in order."""

    module = "google.cloud.pubsub_v1"
    extra = "pubsub"

    def __init__(self, topic: str, emulator: str | None, options: CheckedBrokerOptions) -> None:
        super().__init__(options)
        if topic.split("/")[::2] != ["projects", "topics"] or not all(topic.split("/")[1::2]):
            raise InvalidSetting(f"topic cannot be {topic!r}", hint="give projects/<project>/topics/<topic>")
        self._topic = topic
        self._emulator = emulator

    async def _connect(self) -> Any:
        library = self.library()
        given = await self._secrets.filled(self._options.client)
        if self._emulator is not None:
            given |= await asyncio.to_thread(self._without_credentials, library)
        # The worker's batch is sent at once: the client must not wait for more messages.
        settings = library.types.BatchSettings(max_messages=1000, max_latency=0.001)
        ordered = library.types.PublisherOptions(enable_message_ordering=True)
        arguments = {"batch_settings": settings, "publisher_options": ordered, **given}
        return await asyncio.to_thread(lambda: library.PublisherClient(**arguments))

    def _without_credentials(self, library: Any) -> dict[str, Any]:
        channel = import_module("grpc").insecure_channel(self._emulator)
        anonymous = import_module("google.auth.credentials").AnonymousCredentials()
        transport = library.PublisherClient.get_transport_class("grpc")
        return {"transport": transport(channel=channel, credentials=anonymous)}

    def _is_lost(self, _connection: Any) -> bool:
        return False  # its channel reconnects, and each publish has a time limit

    async def _publish(self, connection: Any, parcels: Sequence[Parcel]) -> None:
        waiting = []
        for parcel in parcels:
            message = parcel.message
            attributes = {
                f"header-{name}" if name in _PARAMETERS else name: value for name, value in parcel.headers.items()
            }
            publishing = connection.publish(
                self._topic, message.payload, ordering_key=message.key or "", timeout=self._seconds, **attributes
            )
            waiting.append((parcel, asyncio.wrap_future(publishing)))
        try:
            await self._await_confirmations(waiting)
        finally:
            # After a failure the client accepts nothing more for that key until `resume_publish`.
            failed = {parcel.message.key for parcel, confirmed in waiting if parcel.message.key and _failed(confirmed)}
            for key in failed:
                connection.resume_publish(self._topic, key)

    def _is_common(self, error: Exception) -> bool:
        # The service refuses a whole request because of one invalid message (an attribute of more than 1024 bytes).
        return isinstance(error, import_module("google.api_core.exceptions").InvalidArgument)

    async def _ping(self, connection: Any) -> None:
        # The credentials may allow publishing only; a refusal shows that the service answers, too.
        with suppress(import_module("google.api_core.exceptions").ClientError):
            await asyncio.to_thread(connection.get_topic, topic=self._topic, timeout=self._seconds)

    async def _close(self, connection: Any) -> None:
        await asyncio.to_thread(connection.stop)

    def _client_reasons(self) -> Reasons:
        exceptions = import_module("google.api_core.exceptions")  # comes with the client library
        return {
            exceptions.GoogleAPIError: ("BROKER_DOWN", True),
            exceptions.RetryError: ("BROKER_TIMEOUT", True),
            exceptions.DeadlineExceeded: ("BROKER_TIMEOUT", True),
            exceptions.NotFound: ("UNROUTABLE", True),
            exceptions.Forbidden: ("BROKER_DENIED", True),
            exceptions.Unauthorized: ("BROKER_DENIED", True),
            exceptions.InvalidArgument: ("BROKER_REJECTED", False),
            self.library("publisher.exceptions").MessageTooLargeError: ("TOO_LARGE", False),
        }


def _failed(confirmed: asyncio.Future[Any]) -> bool:
    return not confirmed.done() or confirmed.cancelled() or confirmed.exception() is not None


def pubsub(topic: str, *, emulator: str | None = None, **given: Unpack[BrokerOptions]) -> Pubsub:
    """Creates a destination on a topic of Google Pub/Sub: `projects/<project>/topics/<topic>`. The message's key is the
    ordering key.

    Google's default credentials apply; an `emulator` (host:port) needs none. `client`: further arguments of
    `PublisherClient`.
    """
    return Pubsub(topic, emulator, check_options("pubsub", topic.rpartition("/")[2], given, max_bytes=10_000_000))
