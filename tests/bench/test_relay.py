"""`make bench-relay` passes over a broker that is missing."""

from __future__ import annotations

import sys

import pytest

from bench import relay
from tests.destinations.kinds import KINDS


def test_a_broker_that_is_missing_is_named_and_passed_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in relay.BARE:
        monkeypatch.setattr(KINDS[name].server, "missing", staticmethod(lambda: "it is not installed"))
    monkeypatch.setattr(sys, "argv", ["bench-relay"])
    relay.main()
    said = capsys.readouterr().out
    assert all(f"  {name}: passed over: it is not installed" in said for name in relay.BARE)
    assert said.endswith("0 ok, 0 short\n")
