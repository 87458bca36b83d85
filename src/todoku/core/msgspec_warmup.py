"""Makes msgspec inspect Struct types at import, before threads decode them.

msgspec inspects a Struct when it first decodes one, and stores the result with the class step by step. A second thread
that decodes the same type meanwhile finds half of it, and the process dies of a segmentation fault (seen with 0.22).
So each module warms up the types that it defines and that threads decode.
"""

from __future__ import annotations

import msgspec


def warm_up(*kinds: type[msgspec.Struct]) -> None:
    """Makes msgspec inspect these types and the types of their fields."""
    for kind in kinds:
        msgspec.json.Decoder(kind)
