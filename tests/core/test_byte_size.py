"""Sizes as people read them."""

from __future__ import annotations

import pytest

from todoku.core.byte_size import format_bytes


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1536 << 10, "1.5 MiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (16 << 20, "16.0 MiB"),
        (3 << 40, "3.0 TiB"),
        (2**63 - 1, "8.0 EiB"),
        (1 << 80, "1048576.0 EiB"),
    ],
)
def test_a_size_has_one_digit_and_the_largest_unit_below_it(number: int, text: str) -> None:
    assert format_bytes(number) == text
