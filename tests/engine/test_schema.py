"""JSON Schemas of jobs and events, and what is wrong with a payload, field by field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pydantic
import pytest

import todoku
from todoku.core.errors import InvalidMessage
from todoku.engine.jobs.catalogue import read_catalogue


class Address(msgspec.Struct):
    city: str


class Model(pydantic.BaseModel):
    number: int


@pytest.fixture
def bare(tmp_path: Any) -> Any:
    box = todoku.App(f"sqlite:///{tmp_path}/x.db")
    yield box
    box.close()


def test_the_schema_of_a_job_has_a_property_for_each_parameter(bare: todoku.App) -> None:
    @bare.job
    def send(
        ctx: todoku.Context, to: str, address: Address, kind: Literal["a", "b"] = "a", n: int | None = None
    ) -> None:
        """Sends a letter.

        Not a parcel.
        """

    (job,) = read_catalogue(bare.declarations).jobs
    assert (job.name, job.kind, job.description) == ("send", "job", "Sends a letter.")
    assert job.schema["required"] == ["to", "address"]
    assert list(job.schema["properties"]) == ["to", "address", "kind", "n"]
    assert job.schema["properties"]["to"] == {"type": "string"}
    assert job.schema["properties"]["kind"] == {"enum": ["a", "b"], "default": "a"}
    assert job.schema["additionalProperties"] is False


def test_events_consumers_and_topics_are_listed(bare: todoku.App) -> None:
    @bare.event("order.created", key="id")
    @dataclass
    class Order:
        id: str
        total: int = 0

    @bare.on(Order)
    def points(order: Order) -> None: ...

    @bare.on("user.*")
    def audit(event: Model) -> None: ...

    found = read_catalogue(bare.declarations)
    assert [(job.name, job.kind, job.topic) for job in found.jobs] == [
        ("audit", "consumer", "audit"), ("points", "consumer", "order.created"),
    ]  # fmt: skip
    assert [(event.topic, event.key, event.description) for event in found.events] == [("order.created", "id", "")]
    assert found.topics == ("order.created", "user.*")
    assert found.jobs[0].schema["properties"]["number"]["type"] == "integer"


def test_what_is_wrong_is_said_by_parameter(bare: todoku.App) -> None:
    @bare.job
    def send(to: str, address: Address, model: Model, *rest: int, n: int = 1, **more: bool) -> None: ...

    signature = send.handler.signature
    good = '{"to": "x", "address": {"city": "y"}, "model": {"number": 1}, "rest": [1], "extra": true}'
    assert signature.problems(good) == {}
    bad = '{"address": {"city": 1}, "model": {"number": "x"}, "rest": [1, "2"], "n": null}'
    found = signature.problems(bad)
    assert sorted(found) == ["address", "model", "n", "rest", "to"]
    assert (found["to"], found["address"]) == ("is required", "city: Expected `str`, got `int`")
    assert list(signature.problems("[]")) == list(signature.problems("{")) == [""]


def test_a_payload_becomes_the_arguments_of_a_call(bare: todoku.App) -> None:
    @bare.job
    def resize(name: str, /, width: int = 1, *sizes: int, quality: int = 80) -> None: ...

    @bare.job
    def plain(a: int, b: int = 2) -> None: ...

    signature = resize.handler.signature
    assert signature.call_arguments({"name": "x", "width": 3, "sizes": [1, 2], "quality": 9}) == (
        ["x", 3, 1, 2], {"quality": 9},
    )  # fmt: skip
    assert plain.handler.signature.call_arguments({"b": 1}) == ([], {"b": 1})
    for wrong in ([], "x", {"name": "x", "width": 1, "sizes": 5}):
        with pytest.raises(InvalidMessage):
            signature.call_arguments(wrong)
