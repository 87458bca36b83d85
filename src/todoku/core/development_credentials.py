"""The public credentials that the official clients use in development mode.

Only a server that listens on a loopback address accepts them.
"""

from __future__ import annotations

from typing import Final

from todoku.core.scope import Secret
from todoku.core.signing_keys import SigningKeys

TOKEN: Final = "eyJVc2VySUQiOiJkZWZhdWx0VXNlciIsIlBhc3N3b3JkIjoiZGVmYXVsdFBhc3N3b3JkIn0="  # noqa: S105 - public
KEYS: Final = SigningKeys(current="sig_7kYjw48mhY7kAjqNGcy6cr29RJ6r", next="sig_5ZB6DVzB1wjE8S6rZ7eenA8Pdnhs")
PORT: Final = 8080
"""The port at which those clients expect a development server."""


def is_public(token: Secret | None, keys: SigningKeys | None) -> bool:
    """Whether the token or one of the keys is a public development credential."""
    return token == Secret(TOKEN) or (keys is not None and bool({keys.current, keys.next} & {KEYS.current, KEYS.next}))
