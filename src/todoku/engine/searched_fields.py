"""Payload fields by which messages are found: `search=["order_id"]` keeps their values as labels at publish.

Values of encrypted messages and of masked fields are kept as keyed digests, which answer equality and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from todoku.core.errors import InvalidAct, InvalidSetting
from todoku.core.message import Draft
from todoku.core.redaction import is_sensitive
from todoku.core.sealed import NO_KEY_HINT, MasterKey, MasterKeys
from todoku.core.search import MAX_FIELDS, check_path, field_label, scalar_text, value_at
from todoku.core.settings import Settings
from todoku.core.topic_pattern import matches

_MAX_TOPICS: Final = 1000
"""Topics whose fields are remembered."""


class SearchedField(msgspec.Struct, frozen=True):
    """A field of the payloads of some topics. `keyed`: only digests of its values are kept."""

    topic: str
    path: str
    keyed: bool


class SearchedFields:
    """The declared fields of one App."""

    def __init__(self, settings: Settings) -> None:
        self._masters: MasterKeys = settings.master_keys
        self._masked = frozenset(settings.mask_fields)
        self._by_topic: dict[str, tuple[SearchedField, ...]] = {}
        self.declared: list[SearchedField] = []
        """All fields, in the order of declaration: a publisher that declares none asks no more than this."""

    def declare(self, topic: str, paths: Sequence[str], *, names: Sequence[str] = ()) -> None:
        """Keeps these fields of messages of a topic, or pattern, from now on. `names`: the fields it has, if known."""
        if isinstance(paths, str) or not isinstance(paths, Sequence):
            raise InvalidSetting(f"{topic}: search cannot be {paths!r}", hint='a list of fields: search=["order_id"]')
        if len(paths) > MAX_FIELDS:
            raise InvalidSetting(f"{topic}: search has {len(paths)} fields", hint=f"{MAX_FIELDS} at most")
        for path in paths:
            self._check(topic, path, names)
            if not any((each.topic, each.path) == (topic, path) for each in self.declared):
                self.declared.append(SearchedField(topic, path, is_masked(path, self._masked)))
        self._by_topic.clear()

    def labelled(self, draft: Draft, *, keyed: bool) -> Draft:
        """Returns the draft with the labels of its fields. `keyed`: it will be encrypted."""
        fields = self._of(draft.topic)
        if not fields or draft.payload is None:
            return draft
        labels: list[str] = [] if draft.labels is None else msgspec.json.decode(draft.labels, type=list[str])
        known = len(labels)
        labels += [label for label in self._labels(draft.payload, fields, keyed=keyed) if label not in labels]
        if len(labels) == known:
            return draft
        return msgspec.structs.replace(draft, labels=msgspec.json.encode(labels).decode())

    def _labels(self, payload: str, fields: Sequence[SearchedField], *, keyed: bool) -> Iterator[str]:
        document = msgspec.json.decode(payload)
        for field in fields:
            value = scalar_text(value_at(document, field.path))
            if value is not None and (keyed or field.keyed):
                yield keyed_label(self._masters.oldest, field.path, value)
            elif value is not None:
                yield field_label(field.path, value)

    def _of(self, topic: str) -> tuple[SearchedField, ...]:
        if (found := self._by_topic.get(topic)) is None:
            fields = {each.path: each for each in self.declared if matches(each.topic, topic)}
            found = tuple(fields.values())[:MAX_FIELDS]
            if len(self._by_topic) >= _MAX_TOPICS:
                self._by_topic.clear()
            self._by_topic[topic] = found
        return found

    def _check(self, topic: str, path: object, names: Sequence[str]) -> None:
        try:
            text = check_path(path)
        except InvalidAct as error:
            raise InvalidSetting(f"{topic}: search: {error}") from None
        if names and text.split(".")[0] not in names:
            raise InvalidSetting(f"{topic} has no field {text!r} to search", hint=f"one of: {', '.join(names)}")
        if is_masked(text, self._masked) and not self._masters:
            raise InvalidSetting(
                f"{topic}: {text} is masked, so only a keyed digest of it may be kept, and no master key is configured",
                hint=f"leave it out of search=, or {NO_KEY_HINT}",
            )


def is_masked(path: str, masked: frozenset[str]) -> bool:
    """Whether a field, or one that it is in, is hidden from those who may only look."""
    return any(is_sensitive(part, masked) for part in path.split("."))


def keyed_label(master: MasterKey, path: str, value: str) -> str:
    """The label of a field whose value must not be readable: equal values have equal labels."""
    return field_label(path, master.digest(f"search {path}\n{value}"))
