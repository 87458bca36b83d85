"""Settings of the project: on SQLite, or where POSTGRES_NAME and POSTGRES_HOST say."""

import os

SECRET_KEY = "only-for-tests"
ROOT_URLCONF = "urls"
USE_TZ = True
DEBUG = False
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "todoku.integrations.django",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
TASKS = {
    "default": {"BACKEND": "todoku.integrations.django.tasks.TodokuBackend", "QUEUES": ["default", "slow"]},
    "patient": {"BACKEND": "todoku.integrations.django.tasks.TodokuBackend", "OPTIONS": {"max_attempts": 3}},
}

if name := os.environ.get("POSTGRES_NAME"):
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": name,
            "USER": "postgres",
            "HOST": os.environ["POSTGRES_HOST"],
            "TEST": {"NAME": f"{name}_test"},
        }
    }
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ["SQLITE_NAME"],
            "TEST": {"NAME": os.environ["SQLITE_NAME"] + ".test"},
        }
    }
if schema := os.environ.get("TODOKU_TEST_SCHEMA"):
    TODOKU = {"SCHEMA": schema}
