"""A broker behind HTTP. It deduplicates on the Idempotency-Key, so sending again is safe."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Final

import httpx
import msgspec

import todoku
from orders_example.broker import Execution
from orders_example.order import Order
from orders_example.reasons import AdapterError, Reason

_BY_STATUS: Final[Mapping[int, Reason]] = {
    409: Reason.BROKER_REJECTED,
    422: Reason.VALIDATION_ERROR,
    502: Reason.BROKER_DOWN,
    503: Reason.BROKER_DOWN,
    504: Reason.BROKER_TIMEOUT,
}


class HttpAdapter:
    """`POST /orders` of a broker server. `token` is where the credential is found, and is asked for each time."""

    name = "http"

    def __init__(self, url: str, token: todoku.Ref) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._tls = ssl.create_default_context()  # reading the world's certificates takes longer than an order

    async def send(self, order: Order) -> Execution:
        """As BrokerAdapter.send."""
        headers = {
            "authorization": f"Bearer {await self._token.aget()}",
            "content-type": "application/json",
            "idempotency-key": order.idempotency_key,
            "x-worker": str(os.getpid()),
        }
        try:
            # The time limit is the caller's.
            async with httpx.AsyncClient(verify=self._tls, timeout=None, trust_env=False) as client:  # noqa: S113
                answer = await client.post(f"{self._url}/orders", content=msgspec.json.encode(order), headers=headers)
        except httpx.TransportError as error:
            raise AdapterError(Reason.BROKER_DOWN, f"{type(error).__name__}: {error}") from error
        if answer.is_success:
            return msgspec.json.decode(answer.content, type=Execution)
        raise AdapterError(_reason(answer), f"the broker answered {answer.status_code}")


def _reason(answer: httpx.Response) -> Reason:
    """What the broker says of itself, else what its status means. A wrong credential is a fault of ours."""
    try:
        said = str(msgspec.json.decode(answer.content, type=dict[str, object]).get("error"))
    except msgspec.MsgspecError:
        said = ""
    return Reason(said) if said in set(Reason) else _BY_STATUS.get(answer.status_code, Reason.INTERNAL_ERROR)
