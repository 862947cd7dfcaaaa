from __future__ import annotations

import os
import time

from django.db import transaction

from queue_lib import Delivery, Message
from shop.models import Order
from shop.queueing import handler, publish, queue


@handler
def ship(delivery: Delivery) -> None:
    """Ship an order. It may run again for the same delivery, and then changes nothing."""
    time.sleep(0.05)  # the courier's web service; no transaction is open meanwhile
    with transaction.atomic():
        unshipped = Order.objects.filter(pk=int(delivery.payload), shipped_by=None)
        unshipped.update(shipped_by=os.getpid())
        # The id makes a second publish a no-op.
        publish(Message("orders.shipped", delivery.payload, id=delivery.delivery_id))


def start() -> None:
    """Start this process's share of the work: once in each worker process, after the fork."""
    queue.subscribe("orders", "shipping", ship, concurrency=2)
