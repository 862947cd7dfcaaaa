"""A shop: an order and its message are written in one transaction, and shipped by a handler."""

from __future__ import annotations

import os
import time
from typing import Any

import sqlalchemy as sa
from flask import Flask, abort, request
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from queue_lib import Delivery, Message, migrate, open_queue


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    shipped_by: Mapped[int | None]
    """The process whose handler shipped it."""


# Neither connects to anything yet, so both may be made before a server forks its workers.
engine = sa.create_engine(os.environ.get("DATABASE_URL", "sqlite:///shop.db"))
queue = open_queue(engine)

Session = sessionmaker(engine)
app = Flask(__name__)


@app.cli.command("init-db")
def init_db() -> None:
    """Create or upgrade the tables. Run it before the servers start, once for each release."""
    Base.metadata.create_all(engine)
    migrate.upgrade(engine)


@app.post("/orders")
def create_order() -> tuple[dict[str, Any], int]:
    item = request.get_json()["item"]
    with Session.begin() as session:
        order = Order(item=item)
        session.add(order)
        session.flush()  # gives the order its id
        queue.publish(Message("orders", str(order.id).encode()), connection=session)
        if item == "unicorn":
            abort(409, "out of stock")  # leaves the block: neither order nor message is there
        return {"id": order.id}, 202


@app.get("/orders")
def list_orders() -> list[dict[str, Any]]:
    with Session() as session:
        orders = session.scalars(sa.select(Order).order_by(Order.id))
        return [{"id": o.id, "item": o.item, "shipped_by": o.shipped_by} for o in orders]


@app.get("/health")
def health() -> tuple[dict[str, Any], int]:
    now = queue.health()
    groups = [f"{s.topic}:{s.group}" for s in now.subscriptions]
    return {"ok": now.ok, "consuming": groups}, 200 if now.ok else 503


def ship(delivery: Delivery) -> None:
    """Ship an order. It may run again for the same delivery, and then changes nothing."""
    time.sleep(0.05)  # the courier's web service; no transaction is open meanwhile
    with Session.begin() as session:
        order = session.get_one(Order, int(delivery.payload))
        order.shipped_by = order.shipped_by or os.getpid()
        # The id makes a second publish a no-op.
        done = Message("orders.shipped", delivery.payload, id=delivery.delivery_id)
        queue.publish(done, connection=session)


def start_consuming() -> None:
    """Start this process's share of the work: once in each worker process, after the fork."""
    queue.subscribe("orders", "shipping", ship, concurrency=2)
