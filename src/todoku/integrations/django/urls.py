"""The URLs of the dashboard, to include: `path("todoku/", include("todoku.integrations.django.urls"))`."""

from __future__ import annotations

from django.urls import re_path

from todoku.integrations.django.dashboard import dashboard

app_name = "todoku"
urlpatterns = [re_path(r"^(?P<path>.*)$", dashboard, name="dashboard")]
