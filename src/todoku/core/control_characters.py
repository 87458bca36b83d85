"""Control characters made visible, so that text from outside only ever reads as text (SEC-12).

A terminal obeys what it is sent: an escape sequence recolours, erases or retypes, a carriage return writes over a line,
a newline forges one, and Unicode's overrides of direction let a text read as another. All that people are shown goes
through here: the tables and lines of the command line, log lines, web pages, and JSON.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_CONTROL: Final = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0 with ESC, CR and newline; DEL; C1
    "\xad\u061c\u180e\u200b\u200e\u200f\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # unseen; marks; isolates
    "\u2028-\u202e"  # separators of lines and paragraphs; embeddings and overrides of direction
    "\ud800-\udfff"  # halves of a pair: they cannot be written at all
    "]"
)
"""Not the joiners U+200C and U+200D: emoji and several scripts are written with them."""


def escape_controls(text: str) -> str:
    r"""`text` on one line, with each control character as an escape that can be read: `\x1b`, `\n`, `\u202e`."""
    return text if text.isascii() and text.isprintable() else _CONTROL.sub(_readable, text)


def encode_json(value: object) -> bytes:
    """`value` as JSON on one line. Control characters in its texts are JSON's own escapes: it decodes to the same."""
    return escape_json(msgspec.json.encode(value))


def escape_json(encoded: bytes) -> bytes:
    """JSON that was encoded already, with each control character in its texts as JSON's own escape."""
    if encoded.isascii() and b"\x7f" not in encoded:
        return encoded
    return _CONTROL.sub(_json_escape, encoded.decode()).encode()


def _readable(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _json_escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x1_0000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x1_0000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
