from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from queue_lib import migrate


class Command(BaseCommand):
    help = "Create or upgrade the tables of the queue."

    def handle(self, *args: Any, **options: Any) -> None:
        migrate.upgrade(settings.DATABASE_URL)
