from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations: ClassVar = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("item", models.TextField()),
                (
                    "shipped_by",
                    models.IntegerField(
                        null=True, help_text="the process whose handler shipped it"
                    ),
                ),
            ],
        ),
    ]
