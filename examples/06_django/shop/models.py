from __future__ import annotations

from django.db import models


class Order(models.Model):
    item = models.TextField()
    shipped_by = models.IntegerField(null=True, help_text="the process whose handler shipped it")
