"""Django's settings. One `DATABASE_URL`, in SQLAlchemy's form, serves Django and the queue."""

from __future__ import annotations

import os
from typing import Any

import sqlalchemy as sa

DATABASE_URL = os.environ.get("DATABASE_URL", "sqlite:///shop.db")


def _database(url: sa.URL) -> dict[str, Any]:
    if url.get_backend_name() == "sqlite":
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": url.database,
            # Take the write lock at the start of `atomic`: a transaction that reads first cannot
            # write any more once another process wrote. (Django 5.1; the timeout in seconds.)
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
        }
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.database,
        "HOST": url.host or "",
        "PORT": str(url.port or ""),
        "USER": url.username or "",
        "PASSWORD": url.password or "",
    }


DATABASES = {"default": _database(sa.make_url(DATABASE_URL))}
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "urls"
SECRET_KEY = os.environ.get("SECRET_KEY", "only for the example")
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
