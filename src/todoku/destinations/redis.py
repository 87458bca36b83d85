"""Redis and Valkey Streams: a batch is one pipeline of XADD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from todoku.core.errors import InvalidSetting
from todoku.core.failure import DeliveryError, Reasons
from todoku.destinations.broker import Broker, BrokerOptions, CheckedBrokerOptions, Parcel, addressed, options

PAYLOAD = "payload"
"""The field of an entry that has the payload; all others are headers."""


class Redis(Broker[Any]):
    """Appends entries to a stream. A stream does not know duplicates: its consumer tells them by the message id."""

    module = "redis"
    extra = "redis"

    def __init__(
        self, stream: str, url: str, maxlen: int | None, replicas: int, options: CheckedBrokerOptions, *, fsync: bool
    ) -> None:
        super().__init__(options)
        if maxlen is not None and maxlen < 1:
            raise InvalidSetting(f"maxlen cannot be {maxlen}", hint="give at least 1, or None: nothing is trimmed")
        if replicas < 0:
            raise InvalidSetting(f"replicas cannot be {replicas}", hint="give how many must have it, 0 or more")
        self._stream = stream
        self._url = url
        self._maxlen = maxlen
        self._replicas = replicas
        self._fsync = fsync

    async def _connect(self) -> Any:
        asynchronous, backoff, retry = (self.library(part) for part in ("asyncio", "backoff", "asyncio.retry"))
        # Not trying again by itself: a pipeline that was sent twice would append everything twice.
        client = asynchronous.Redis.from_url(
            self._url,
            **{
                "retry": retry.Retry(backoff.NoBackoff(), 0), "socket_connect_timeout": self._seconds,
                **self._options.client,
            },
        )  # fmt: skip
        try:
            await client.ping()
        except BaseException:
            await client.aclose()
            raise
        return client

    def _is_lost(self, _connection: Any) -> bool:
        return False  # a pool: each pipeline has a live connection, or fails

    async def _publish(self, connection: Any, parcels: Sequence[Parcel]) -> None:
        if not parcels:
            return
        pipeline = connection.pipeline(transaction=False)
        for parcel in parcels:
            stream = addressed(self._stream, parcel.message)
            fields = {**parcel.headers, PAYLOAD: parcel.message.payload}
            pipeline.xadd(stream, fields, maxlen=self._maxlen, approximate=True)
        kept = self._and_kept(pipeline)
        answers = await pipeline.execute(raise_on_error=False)
        if kept and (missing := self._missing(answers.pop())):
            raise missing
        for parcel, answer in zip(parcels, answers, strict=True):
            if isinstance(answer, Exception):
                parcel.outcome = self.meaning(answer)
            else:
                parcel.arrived()

    def _and_kept(self, pipeline: Any) -> bool:
        """Ask that the batch be on disk, or on replicas, before it counts as arrived. Whether that was asked."""
        milliseconds = int(self._seconds * 900)
        if self._fsync:
            pipeline.execute_command("WAITAOF", 1, self._replicas, milliseconds)
        elif self._replicas:
            pipeline.execute_command("WAIT", self._replicas, milliseconds)
        return self._fsync or self._replicas > 0

    def _missing(self, answer: Any) -> Exception | None:
        """What is wrong with the answer about disk and replicas."""
        if isinstance(answer, Exception):
            return answer
        disk, replicas = answer if self._fsync else (1, answer)
        if disk >= 1 and replicas >= self._replicas:
            return None
        return DeliveryError("BROKER_TIMEOUT", f"appended; on disk: {disk}, on {replicas} of {self._replicas} replicas")

    async def _ping(self, connection: Any) -> None:
        await connection.ping()

    async def _close(self, connection: Any) -> None:
        await connection.aclose()

    def _raised(self) -> Reasons:
        errors = self.library("exceptions")
        return {
            errors.RedisError: ("BROKER_DOWN", True),
            errors.TimeoutError: ("BROKER_TIMEOUT", True),
            errors.AuthenticationError: ("BROKER_DENIED", True),
            errors.NoPermissionError: ("BROKER_DENIED", True),
            errors.DataError: ("BROKER_REJECTED", False),
            # Out of memory and read-only are answers, too: they pass. A key that is no stream stays one.
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
    """A destination on a stream of Redis or Valkey. `{topic}` in its name is the message's topic.

    `maxlen`: the stream is trimmed to about so many entries. A message has arrived when the server has it in memory;
    with `fsync`, when it is in its append-only file too (WAITAOF); with `replicas`, when so many replicas have it.
    `client`: further arguments of `redis.asyncio.Redis.from_url`.
    """
    return Redis(stream, url, maxlen, replicas, options("redis", stream, given, max_bytes=512 << 20), fsync=fsync)
