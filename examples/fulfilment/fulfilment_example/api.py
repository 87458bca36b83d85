"""The API: `POST /orders`, `GET /orders/{order}`, `POST /orders/{order}/approval`. A worker runs beside it."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from fulfilment_example.shop import Approval, Shop


class NewOrder(BaseModel):
    """What is posted."""

    amount: int = Field(gt=0, le=1_000_000)
    skus: list[str] = Field(min_length=1, max_length=100)


def make_api(shop: Shop) -> FastAPI:
    """The API of a shop. Endpoints are plain functions: FastAPI runs them in threads."""
    api = FastAPI(title="fulfilment", lifespan=shop.box.lifespan)

    @api.post("/orders", status_code=201)
    def create(order: NewOrder) -> dict[str, Any]:
        number, run = shop.order(order.amount, order.skus)
        return {"id": number, "run": run}

    @api.get("/orders/{order}")
    def show(order: int) -> dict[str, Any]:
        if (found := shop.show(order)) is None:
            raise HTTPException(404, f"there is no order {order}")
        return found

    @api.post("/orders/{order}/approval", status_code=204)
    def decide(order: int, approval: Approval) -> None:
        if shop.show(order) is None:
            raise HTTPException(404, f"there is no order {order}")
        if not shop.decide(order, approval):
            raise HTTPException(409, f"order {order} was approved or refused before")

    return api
