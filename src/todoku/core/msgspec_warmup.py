"""Types that msgspec has to know before threads use them.

It learns a Struct when it first decodes one, and keeps what it has learned so far with the class: a second thread that
decodes one meanwhile meets half of it, and the process dies (a segmentation fault; seen with 0.22). So whatever is
decoded while threads run is learned where it is defined, when its module is imported.
"""

from __future__ import annotations

import msgspec


def learned(*kinds: type[msgspec.Struct]) -> None:
    """Let msgspec learn these, and what is in them."""
    for kind in kinds:
        msgspec.json.Decoder(kind)
