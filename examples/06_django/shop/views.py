from __future__ import annotations

import json

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_http_methods

from queue_lib import Message
from shop.models import Order
from shop.queueing import publish, queue


class OutOfStockError(Exception):
    pass


@require_http_methods(["GET", "POST"])
def orders(request: HttpRequest) -> JsonResponse:
    if request.method == "GET":
        return JsonResponse(list(Order.objects.order_by("id").values()), safe=False)
    item = json.loads(request.body)["item"]
    try:
        with transaction.atomic():
            order = Order.objects.create(item=item)
            publish(Message("orders", str(order.pk).encode()))
            if item == "unicorn":
                raise OutOfStockError  # leaves the block: neither order nor message is there
    except OutOfStockError:
        return JsonResponse({"error": "out of stock"}, status=409)
    return JsonResponse({"id": order.pk}, status=202)


@require_http_methods(["GET"])
def health(request: HttpRequest) -> JsonResponse:
    now = queue.health()
    groups = [f"{s.topic}:{s.group}" for s in now.subscriptions]
    return JsonResponse({"ok": now.ok, "consuming": groups}, status=200 if now.ok else 503)
