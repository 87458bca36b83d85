"""Rows of the project's own."""

from django.db import models


class User(models.Model):
    """Somebody who signed up."""

    name = models.TextField(unique=True)
    welcomed = models.IntegerField(default=0)
