"""What a job is told: its type, and the payload that all types share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec

ADDRESS = r"^[^@\s<>,;:\"]+@[^@\s<>,;:\"]+$"
"""One @ and nothing that could begin another header or recipient; whether it exists, only its server knows."""

Address = Annotated[str, msgspec.Meta(pattern=ADDRESS, max_length=320)]
ValidationMode = Literal["strict", "lenient"]


class JobType(StrEnum):
    """The four types of the seed."""

    USER_CREATED = "user_created"
    DATA_ANALYSIS = "data_analysis"
    EMAIL_NOTIFICATION = "email_notification"
    DATA_EXPORT = "data_export"


class JobPayload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The seed's JobPayload; its names in JSON are these, in snake case. What is left out is not stored.

    `validation_mode` decides about `additional_props` and `recipients` that make no sense: strict gives the job up,
    lenient warns and goes on without them.
    """

    user_id: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] | None = None
    user_data: dict[str, Any] = {}
    additional_props: dict[str, Any] = {}
    message: Annotated[str, msgspec.Meta(max_length=10_000)] = ""
    recipients: Annotated[tuple[Address, ...], msgspec.Meta(max_length=1000)] = ()
    validation_mode: ValidationMode = "lenient"
