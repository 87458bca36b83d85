"""The admin, and todoku's dashboard."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls), path("todoku/", include("todoku.integrations.django.urls"))]
