"""The API: documents in, documents found, and what happened to one."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import DBAPIError

import todoku
from projections_example.application import Application
from projections_example.documents import Draft

Line = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]


class Written(BaseModel):
    """What is posted. `published_on` is meant to be a day, and this API does not insist."""

    model_config = ConfigDict(extra="forbid")

    title: Line
    body: Annotated[str, Field(max_length=100_000, pattern=r"^[^\x00]*$")] = ""
    author: Line
    published_on: Annotated[str, Field(max_length=40, pattern=r"^[^\x00]*$")] | None = None

    def draft(self) -> Draft:
        """The same for the table."""
        return Draft(**self.model_dump())


def make_api(application: Application) -> FastAPI:
    """The API on an application that is prepared. Endpoints are plain functions: FastAPI runs them in threads."""
    api = FastAPI(title="projections", docs_url=None, redoc_url=None)
    for kind in (DBAPIError, todoku.DatabaseUnavailable):
        api.exception_handler(kind)(_away)
    documents = application.documents

    @api.post("/documents", status_code=201)
    def create(written: Written) -> dict[str, Any]:
        return msgspec.to_builtins(documents.create(written.draft()))  # type: ignore[no-any-return]

    @api.get("/documents/{id}")
    def read(id: str) -> dict[str, Any]:
        return _found(documents.get([id]).get(id), id)

    @api.put("/documents/{id}")
    def change(id: str, written: Written) -> dict[str, Any]:
        return _found(msgspec.to_builtins(documents.change(id, written.draft())), id)

    @api.delete("/documents/{id}", status_code=204)
    def delete(id: str) -> Response:
        if not documents.delete(id):
            raise HTTPException(404, f"there is no document {id}")
        return Response(status_code=204)

    @api.get("/documents/{id}/chronicle")
    def chronicle(id: str) -> list[dict[str, Any]]:
        return application.chronicle.entries(id)

    @api.get("/search")
    def search(q: Annotated[str, Query(min_length=1, max_length=200)]) -> dict[str, Any]:
        answer = application.find(q)
        return {"from": answer.source, "documents": answer.documents}

    return api


def _found(document: Any, id: str) -> dict[str, Any]:
    if document is None:
        raise HTTPException(404, f"there is no document {id}")
    return dict(document)


def _away(_request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": f"the database cannot do this now ({type(error).__name__})"}, 503)
