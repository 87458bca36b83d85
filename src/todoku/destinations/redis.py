"""Redis and Valkey Streams: a batch is one pipeline of XADD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from todoku.core.errors import InvalidSetting
from todoku.core.failure import DeliveryError, Reasons
from todoku.destinations.broker import (
    Broker,
    BrokerOptions,
    CheckedBrokerOptions,
    Parcel,
    check_options,
    format_address,
)

PAYLOAD = "payload"
"""The field of an entry that contains the payload; all others are headers."""


class Redis(Broker[Any]):
    """Appends entries to a stream. A stream does not recognise duplicates; consumers do, by the message id."""

    module = "redis"
    extra = "redis"

    def __init__(
        self, stream: str, url: str, maxlen: int | None, replicas: int, options: CheckedBrokerOptions, *, fsync: bool
    ) -> None:
        super().__init__(options)
        if maxlen is not None and maxlen < 1:
            raise InvalidSetting(f"maxlen cannot be {maxlen}", hint="give at least 1, or None to keep all entries")
        if replicas < 0:
            raise InvalidSetting(
                f"replicas cannot be {replicas}", hint="give the number of replicas that must have an entry, 0 or more"
            )
        self._stream = stream
        self._url = url
        self._maxlen = maxlen
        self._replicas = replicas
        self._fsync = fsync

    async def _connect(self) -> Any:
        asynchronous, backoff, retry = (self.library(part) for part in ("asyncio", "backoff", "asyncio.retry"))
        # The client must not retry: a pipeline that is sent twice appends everything twice.
        url, given = await self._secrets.filled((self._url, self._options.client))
        client = asynchronous.Redis.from_url(
            url,
            **{
                "retry": retry.Retry(backoff.NoBackoff(), 0), "socket_connect_timeout": self._seconds,
                **given,
            },
        )  # fmt: skip
        try:
            await client.ping()
        except BaseException:
            await client.aclose()
            raise
        return client

    def _is_lost(self, _connection: Any) -> bool:
        return False  # the client is a pool: each pipeline takes a live connection, or fails

    async def _publish(self, connection: Any, parcels: Sequence[Parcel]) -> None:
        if not parcels:
            return
        pipeline = connection.pipeline(transaction=False)
        for parcel in parcels:
            stream = format_address(self._stream, parcel.message)
            fields = {**parcel.headers, PAYLOAD: parcel.message.payload}
            pipeline.xadd(stream, fields, maxlen=self._maxlen, approximate=True)
        waits = self._wait_for_durability(pipeline)
        replies = await pipeline.execute(raise_on_error=False)
        if waits and (error := self._durability_error(replies.pop())):
            raise error
        for parcel, reply in zip(parcels, replies, strict=True):
            if isinstance(reply, Exception):
                parcel.outcome = self.outcome_of(reply)
            else:
                parcel.arrived()

    def _wait_for_durability(self, pipeline: Any) -> bool:
        """Adds a command that waits until the batch is on disk or on replicas. Returns whether it was needed."""
        milliseconds = int(self._seconds * 900)
        if self._fsync:
            pipeline.execute_command("WAITAOF", 1, self._replicas, milliseconds)
        elif self._replicas:
            pipeline.execute_command("WAIT", self._replicas, milliseconds)
        return self._fsync or self._replicas > 0

    def _durability_error(self, reply: Any) -> Exception | None:
        """Returns the error if the batch is not on disk or not on enough replicas."""
        if isinstance(reply, Exception):
            return reply
        disk, replicas = reply if self._fsync else (1, reply)
        if disk >= 1 and replicas >= self._replicas:
            return None
        return DeliveryError("BROKER_TIMEOUT", f"appended; on disk: {disk}, on {replicas} of {self._replicas} replicas")

    async def _ping(self, connection: Any) -> None:
        await connection.ping()

    async def _close(self, connection: Any) -> None:
        await connection.aclose()

    def _client_reasons(self) -> Reasons:
        errors = self.library("exceptions")
        return {
            errors.RedisError: ("BROKER_DOWN", True),
            errors.TimeoutError: ("BROKER_TIMEOUT", True),
            errors.AuthenticationError: ("BROKER_DENIED", True),
            errors.NoPermissionError: ("BROKER_DENIED", True),
            errors.DataError: ("BROKER_REJECTED", False),
            # Retryable because it includes "out of memory" and "read-only", which pass; WRONGTYPE does not.
            errors.ResponseError: ("BROKER_REJECTED", True),
        }


def redis(
    stream: str,
    *,
    url: str = "redis://localhost:6379/0",
    maxlen: int | None = None,
    replicas: int = 0,
    fsync: bool = False,
    **given: Unpack[BrokerOptions],
) -> Redis:
    """Creates a destination on a stream of Redis or Valkey. `{topic}` in its name is the message's topic.

    `maxlen`: the approximate number of entries that the stream is trimmed to. A message is delivered when the server
    has it in memory; with `fsync`, when the append-only file has it, too (WAITAOF); with `replicas`, when that many
    replicas have it. `client`: further arguments of `redis.asyncio.Redis.from_url`.
    """
    return Redis(stream, url, maxlen, replicas, check_options("redis", stream, given, max_bytes=512 << 20), fsync=fsync)
