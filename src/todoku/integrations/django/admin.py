"""The admin: deliveries and dead letters. Django reads the rows; replays and cancels go through todoku, audited."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm

from todoku.core.control_characters import escape_controls
from todoku.core.redaction import mask
from todoku.core.sealed import payload_placeholder
from todoku.engine import operations
from todoku.integrations.django.models import DeadLetter, Delivery
from todoku.integrations.django.project import get_box
from todoku.store.audit import Signed
from todoku.store.deliveries import Filter


class WhyForm(ActionForm):
    """Asks for the reason of an action, for the audit."""

    why = forms.CharField(required=False, label="Why", max_length=200)


def _escaped(field: str) -> Callable[[Delivery], str | None]:
    """A column that escapes control characters of a field."""

    def display(row: Delivery) -> str | None:
        value = getattr(row, field)
        return None if value is None else escape_controls(str(value))

    column: Callable[[Delivery], str | None] = admin.display(description=field, ordering=field)(display)
    return column


class ReadOnlyAdmin(admin.ModelAdmin):
    """Shows rows read-only, whatever permissions the user has."""

    action_form = WhyForm
    list_display: ClassVar = [
        "id", "topic", _escaped("destination"), _escaped("queue"), "status", "attempts", _escaped("reason"),
        "next_run_at",
    ]  # fmt: skip
    list_filter: ClassVar = ["status", "destination", "queue", "reason"]
    search_fields: ClassVar = ["message__topic", "message__key", "destination", "error"]
    list_select_related: ClassVar = ["message"]
    show_full_result_count = False
    fields: ClassVar = [
        "id", "topic", "key", "inside", _escaped("destination"), _escaped("queue"), "priority", "status", "attempts",
        "max_attempts", "lost", "replay_count", "next_run_at", "updated_at", _escaped("reason"), _escaped("error"),
    ]  # fmt: skip
    readonly_fields = fields

    def has_add_permission(self, request: Any) -> bool:  # noqa: ARG002 - Django's signature
        """Messages are published, not added."""
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002 - Django's signature
        """Rows are deleted by todoku only."""
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Allows actions to users who may change deliveries; rows cannot be edited."""
        return obj is None and super().has_change_permission(request)

    @admin.display(ordering="message__topic")
    def topic(self, row: Delivery) -> str:
        """The topic of its message."""
        return escape_controls(str(row.message.topic))

    @admin.display
    def key(self, row: Delivery) -> str | None:
        """The key of its message."""
        return None if row.message.key is None else escape_controls(row.message.key)

    @admin.display(description="payload")
    def inside(self, row: Delivery) -> str:
        """The payload, masked as on the command line."""
        box = get_box()
        found = box.store.messages.previews([row.message.id]).get(row.message.id)
        if found is None or found.payload is None:
            return "-" if found is None else payload_placeholder(found.content_type, found.size)
        masked = mask(json.loads(found.payload), frozenset(box.settings.mask_fields))
        lines = json.dumps(masked, ensure_ascii=False, indent=2).split("\n")
        return "\n".join(map(escape_controls, lines))

    def _act(self, request: Any, queryset: Any, act: Any) -> operations.ActResult | operations.Replayed | None:
        why = request.POST.get("why", "").strip()
        if not why:
            self.message_user(request, "Enter a reason: it is recorded in the audit.", messages.ERROR)
            return None
        chosen = Filter(ids=tuple(queryset.values_list("pk", flat=True)))
        done: operations.ActResult | operations.Replayed = act(
            get_box().store, chosen, Signed(request.user.get_username(), why)
        )
        return done

    def _report(self, request: Any, number: int, what: str, skipped: dict[str, int]) -> None:
        reasons = "".join(f"; {count} skipped: {reason}" for reason, count in skipped.items())
        self.message_user(request, f"{number} {what}{reasons}.", messages.SUCCESS if number else messages.WARNING)


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyAdmin):
    """Deliveries that have not succeeded."""

    actions: ClassVar = ["cancel"]

    @admin.action(description="Cancel", permissions=["change"])
    def cancel(self, request: Any, queryset: Any) -> None:
        """Cancels: a waiting delivery becomes a dead letter, a running one is asked to stop."""
        if (done := self._act(request, queryset, operations.cancel)) is not None:
            self._report(request, done.changed, "cancelled", done.skipped)  # type: ignore[union-attr]


@admin.register(DeadLetter)
class DeadLetterAdmin(ReadOnlyAdmin):
    """Dead letters."""

    actions: ClassVar = ["replay"]
    list_filter: ClassVar = ["destination", "queue", "reason"]

    @admin.action(description="Replay", permissions=["change"])
    def replay(self, request: Any, queryset: Any) -> None:
        """Replays dead letters with a full set of attempts, audited."""
        if (done := self._act(request, queryset, operations.replay)) is not None:
            self._report(request, done.replayed, "replayed", done.skipped)  # type: ignore[union-attr]
