"""JSON Schemas by topic: a payload that breaks its schema is refused at publish, and aborted if it is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from todoku.core.errors import InvalidMessage, InvalidSetting
from todoku.core.message import Claimed
from todoku.core.outcome import Abort
from todoku.core.topic_pattern import matches, pattern

_MAX_TOPICS: Final = 1024
"""Topics whose schemas are cached, so that patterns are not matched again. A program with more starts over."""


class Schemas:
    """The schemas of an App."""

    def __init__(self) -> None:
        self._declared: list[tuple[str, Any]] = []
        self._of_topic: dict[str, tuple[Any, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._declared)

    def declare(self, topic: str, schema: Mapping[str, Any] | str) -> None:
        """Declares the schema of a topic, or of a pattern: a mapping, or JSON text."""
        pattern(topic)
        self._declared.append((topic, _validator(topic, schema)))
        self._of_topic.clear()

    def check(self, topic: str, text: str) -> None:
        """Raises InvalidMessage if this payload breaks a schema of its topic."""
        if (problem := self._problem(topic, text)) is not None:
            raise InvalidMessage(
                f"{topic} breaks its schema: {problem}", hint="publish a payload that fits, or correct the schema"
            )

    def refused(self, claim: Claimed) -> Abort | None:
        """Returns the outcome of a delivery whose payload breaks a schema; None: it fits."""
        if claim.payload is None or (problem := self._problem(claim.topic, claim.payload)) is None:
            return None
        return Abort("BAD_PAYLOAD", f"{claim.topic} breaks its schema: {problem}")

    def _problem(self, topic: str, text: str) -> str | None:
        validators = self._validators(topic)
        if not validators:
            return None
        value = json.loads(text)
        for validator in validators:
            for error in validator.iter_errors(value):
                where = ".".join(map(str, error.instance_path))
                return f"{where}: {error.message}" if where else str(error.message)
        return None

    def _validators(self, topic: str) -> tuple[Any, ...]:
        found = self._of_topic.get(topic)
        if found is None:
            found = tuple(validator for text, validator in self._declared if matches(text, topic))
            if len(self._of_topic) >= _MAX_TOPICS:
                self._of_topic.clear()
            self._of_topic[topic] = found
        return found


def _validator(topic: str, schema: Mapping[str, Any] | str) -> Any:
    try:
        import jsonschema_rs  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InvalidSetting(
            "a JSON Schema needs jsonschema-rs, which is not installed", hint='pip install "todoku[jsonschema]"'
        ) from error
    try:
        parsed = json.loads(schema) if isinstance(schema, str) else dict(schema)
        # Values are masked: the problem goes into errors and logs, the payload does not. Nothing is fetched.
        return jsonschema_rs.validator_for(parsed, mask="it", validate_formats=True, offline=True)
    except (ValueError, TypeError) as error:  # not JSON, or no schema
        first = str(error).strip().splitlines()[0]
        raise InvalidSetting(f"{topic} has no valid JSON Schema: {first}", hint="see json-schema.org") from None
