"""Numbered migrations: each applied once, recorded with its checksum, never changed afterwards."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files

import msgspec

from todoku.core.errors import SchemaError

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


class Migration(msgspec.Struct, frozen=True):
    """One migration."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """Recorded when the migration is applied, to detect a later change of its text."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations(package: str) -> list[Migration]:
    """The migrations of a backend, in order."""
    named = ((_FILE.fullmatch(file.name), file) for file in (files(package) / "migrations").iterdir())
    found = [Migration(int(match[1]), match[2], file.read_text("utf-8")) for match, file in named if match]
    return sorted(found, key=lambda step: step.version)


def checked_plan(package: str, applied: Mapping[int, str]) -> list[Migration]:
    """Returns the migrations still to apply, given the checksums of the applied ones. SchemaError: they differ."""
    known = {step.version: step for step in migrations(package)}
    if newer := sorted(set(applied) - set(known)):
        raise SchemaError(
            f"the schema is at version {newer[-1]}, this todoku knows {max(known)}",
            hint="a newer todoku migrated it: upgrade this one",
        )
    for version, checksum in applied.items():
        if known[version].checksum != checksum:
            raise SchemaError(
                f"migration {version} ({known[version].name}) was changed after it was applied",
                hint="restore its text; put changes into a new migration",
            )
    return [step for version, step in sorted(known.items()) if version not in applied]
