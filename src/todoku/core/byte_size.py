"""Sizes in bytes, as people read them."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def format_bytes(number: int) -> str:
    """Returns a size with one digit after the point and its unit: `999 bytes`, `1.5 MiB`."""
    if number < 1024:
        return f"{number} bytes"
    size = float(number)
    for unit in _UNITS:
        size /= 1024
        if round(size, 1) < 1024:
            return f"{size:.1f} {unit}"
    return f"{size:.1f} {_UNITS[-1]}"
