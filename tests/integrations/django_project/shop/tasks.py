"""Tasks of Django's own kind."""

from django.core.exceptions import PermissionDenied

try:
    from django.tasks import task
except ImportError:  # Django 5
    from django_tasks import task


@task
def greet(name: str) -> str:
    """Works."""
    return f"hello {name}"


@task(queue_name="slow", priority=50)
async def greet_slowly(name: str) -> str:
    """Works, async."""
    return f"hello {name}"


@task(takes_context=True)
def attempt(context) -> list:
    """Tells which attempt it is."""
    return [context.attempt, context.task_result.id]


@task
def breaks() -> None:
    """Fails, with a class of Django's."""
    raise PermissionDenied("nobody")


@task(backend="patient")
def breaks_patiently() -> None:
    """Fails, and is tried again."""
    raise ConnectionError("not yet")
