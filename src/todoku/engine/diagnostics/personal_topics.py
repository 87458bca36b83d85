"""Which topics carry what looks personal, and are not encrypted: by the names of fields in the newest messages."""

from __future__ import annotations

import msgspec

from todoku.core.personal_fields import personal_fields
from todoku.store.port import Store

Topics = dict[str, tuple[str, ...]]
"""Topics with the names of their fields that look personal."""


def personal_topics(store: Store) -> Topics:
    """From the newest thousand messages. Values are not kept, and not told."""
    found: dict[str, set[str]] = {}
    for sample in store.data_keys.samples():
        if sample.payload is not None:
            found.setdefault(sample.topic, set()).update(personal_fields(msgspec.json.decode(sample.payload)))
    return {topic: tuple(sorted(fields)) for topic, fields in sorted(found.items()) if fields}
