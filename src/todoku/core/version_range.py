"""The versions of a library with which its private names were tested."""

from __future__ import annotations

import re

import msgspec


class VersionRange(msgspec.Struct, frozen=True):
    """Versions from `lowest` up to, but not including, `below`. Outside of it only the public interface is used."""

    lowest: tuple[int, ...]
    below: tuple[int, ...]

    def includes(self, version: str) -> bool:
        """Whether a version was tested. A pre-release counts as its release; text without a number is in no range."""
        numbers = re.match(r"\d+(?:\.\d+)*", version)
        return numbers is not None and self.lowest <= tuple(map(int, numbers[0].split("."))) < self.below
