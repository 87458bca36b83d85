"""todoku as a Django application: add "todoku.integrations.django" to INSTALLED_APPS.

# shop/jobs.py: found by itself, as admin.py is
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
    """`box`: the App of this project, made when it is first asked for, because Django's settings must be there."""
    if name != "box":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from todoku.integrations.django.project import the_box  # noqa: PLC0415 - needs Django's settings

    return the_box()
