"""Escapes control characters in text from outside, so that they cannot change how it is displayed (SEC-12).

In a terminal, an escape sequence can recolour, erase or type text, a carriage return overwrites a line, a newline
forges one, and Unicode's bidirectional overrides reorder it. Everything shown to people passes through here: output of
the command line, log lines, web pages, and JSON.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_CONTROL: Final = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0 with ESC, CR and newline; DEL; C1
    "\xad\u061c\u180e\u200b\u200e\u200f\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible; marks
    "\u2028-\u202e"  # line and paragraph separators; bidirectional embeddings and overrides
    "\ud800-\udfff"  # lone surrogates: they cannot be encoded
    "]"
)
"""The joiners U+200C and U+200D are left out: emoji and several scripts need them."""


def escape_controls(text: str) -> str:
    r"""Returns `text` on one line, with control characters as readable escapes: `\x1b`, `\n`, `\u202e`."""
    return text if text.isascii() and text.isprintable() else _CONTROL.sub(_text_escape, text)


def encode_json(value: object) -> bytes:
    """Encodes `value` as JSON on one line. Control characters become JSON escapes, so it decodes to the same value."""
    return escape_json(msgspec.json.encode(value))


def escape_json(encoded: bytes) -> bytes:
    """Replaces control characters in encoded JSON with JSON escapes."""
    return encoded if _is_inert(encoded) else _CONTROL.sub(_json_escape, encoded.decode()).encode()


def escape_json_lines(encoded: bytes) -> bytes:
    """As `escape_json`, for lines of JSON: their ends stay what they are."""
    return encoded if _is_inert(encoded) else b"\n".join(map(escape_json, encoded.split(b"\n")))


def _is_inert(encoded: bytes) -> bool:
    """Whether encoded JSON certainly has no control character: JSON itself escapes those of ASCII but DEL."""
    return encoded.isascii() and b"\x7f" not in encoded


def _text_escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _json_escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x1_0000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x1_0000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
