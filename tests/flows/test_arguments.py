"""Arguments of steps: equal ones are the same step in every process, and what cannot be one says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

import msgspec
import pytest

from todoku.core.errors import InvalidMessage
from todoku.engine.publish import encode

_PROGRAM: Final = """
from dataclasses import dataclass
import msgspec
from pydantic import BaseModel
from todoku.engine.publish import encode

class Struct(msgspec.Struct):
    names: set[str]

class Model(BaseModel):
    names: frozenset[str]
    more: dict[str, list[set[str]]]

@dataclass
class Record:
    names: set[str]
    inner: Struct

names = {"tea", "rice", "beans", "salt", "oil"}
model = Model(names=names, more={"a": [names]})
for value in (names, Struct(names), model, [model], Record(names, Struct(names)), {"a": Struct(names)}):
    print(encode(value))
"""


def test_a_set_has_the_same_digest_in_every_process() -> None:
    """R14: a worker with another seed of hashes would take the step for a changed one, and repeat its effect."""
    seeds = ("1", "2", "3", "4")
    texts = {
        subprocess.run(
            [sys.executable, "-c", _PROGRAM], env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in seeds
    }  # fmt: skip
    assert len(texts) == 1
    assert '["beans","oil","rice","salt","tea"]' in texts.pop()


class Mixed(msgspec.Struct):
    values: set[int | str]


def test_a_set_that_has_no_order_says_so() -> None:
    with pytest.raises(InvalidMessage, match="Mixed has a set, or a dict, whose values cannot be sorted"):
        encode(Mixed({1, "a"}))
