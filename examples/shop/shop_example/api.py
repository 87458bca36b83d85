"""The API: `POST /orders`, `POST /orders/{id}/payment`, `GET /orders/{id}`, `GET /outbox`."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import DBAPIError

import todoku
from shop_example.orders import Shop
from shop_example.records import read_records


class NewOrder(BaseModel):
    """What is posted: the arguments of the seed's createOrder."""

    model_config = ConfigDict(extra="forbid")

    userId: UUID  # noqa: N815 - the seed's name, in JSON
    amount: Annotated[int, Field(gt=0, le=2**31 - 1, strict=True)]


def make_api(shop: Shop) -> FastAPI:
    """The API on a shop that is prepared. Endpoints are plain functions: FastAPI runs them in threads."""
    api = FastAPI(title="shop", docs_url=None, redoc_url=None)
    api.exception_handler(DBAPIError)(_away)
    api.exception_handler(todoku.DatabaseUnavailable)(_away)

    @api.post("/orders", status_code=201)
    def create_order(order: NewOrder) -> dict[str, str]:
        return {"orderId": str(shop.create_order(order.userId, order.amount))}

    @api.post("/orders/{id}/payment", status_code=201)
    def confirm_payment(id: UUID) -> dict[str, str]:
        if not shop.confirm_payment(id):
            raise HTTPException(409, f"order {id} is not there, or is paid already")
        return {"orderId": str(id)}

    @api.get("/orders/{id}")
    def get_order(id: UUID) -> dict[str, Any]:
        order = shop.order(id)
        if order is None:
            raise HTTPException(404, f"there is no order {id}")
        return order

    @api.get("/outbox")
    def outbox() -> list[Any]:
        return [msgspec.to_builtins(record) for record in read_records(shop.outbox(), dict[str, Any])]

    return api


def _away(_request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": f"the database cannot do this now ({type(error).__name__})"}, 503)
