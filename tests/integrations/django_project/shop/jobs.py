"""Jobs, found by their module's name."""

from django.db.models import F

import todoku
from shop.models import User
from todoku.integrations.django import box


@box.job
def welcome(user_id: int, token: str = "") -> None:
    """Use the ORM, as a view does."""
    User.objects.filter(id=user_id).update(welcomed=F("welcomed") + 1)


@box.job
async def welcome_later(user_id: int) -> None:
    """The same, async."""
    await User.objects.filter(id=user_id).aupdate(welcomed=F("welcomed") + 1)


@box.job
def refused() -> None:
    """Becomes a dead letter."""
    raise todoku.Abort("REFUSED")
