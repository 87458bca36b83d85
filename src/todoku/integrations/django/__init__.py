"""todoku as a Django application: add "todoku.integrations.django" to INSTALLED_APPS.

# shop/jobs.py: imported automatically, like admin.py
from todoku.integrations.django import box

@box.job
def welcome(user_id: int) -> None: ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from todoku.integrations.django.project import DjangoApp

    box: DjangoApp

__all__ = ["box"]


def __getattr__(name: str) -> Any:
    """`box`: the App of this project, created at the first access, because it needs Django's settings."""
    if name != "box":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from todoku.integrations.django.project import get_box  # noqa: PLC0415 - needs Django's settings

    return get_box()
