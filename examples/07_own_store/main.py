"""Choose the installed store by its name, as an application's configuration would."""

from __future__ import annotations

from queue import SimpleQueue

from queue_lib import Config, Delivery, Message, new_queue, registered

lines: SimpleQueue[str] = SimpleQueue()


def greet(delivery: Delivery) -> None:
    lines.put(f"hello {delivery.payload.decode()}")


def main() -> None:
    print("types:", ", ".join(registered()))
    queue = new_queue(Config(enabled=True, type="plain", config={"max_payload_bytes": 100}))
    assert queue is not None  # None: not enabled
    with queue:
        queue.subscribe("names", "greeter", greet)
        queue.publish(Message("names", b"world"))
        print(lines.get(timeout=30))


if __name__ == "__main__":
    main()
