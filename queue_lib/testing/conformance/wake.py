"""`WakeSource.listen`: publishes of other instances are reported; a matter of latency only."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from queue_lib.stores.base import Store, WakeSource
from queue_lib.testing.conformance.case import DEADLINE, TOPIC, StoreCase, every_test_requires

__all__ = ["WakeConformance"]


@every_test_requires("wake", "shared")
class WakeConformance(StoreCase):
    """Listening for publishes. These tests wait for real wake-ups, each at most `DEADLINE`."""

    @contextmanager
    def listening(self, store: Store) -> Iterator[queue.Queue[str]]:
        """Listen in a thread, as the engine does; yields what was reported."""
        assert isinstance(store, WakeSource)
        heard: queue.Queue[str] = queue.Queue()
        stop = threading.Event()
        thread = threading.Thread(target=store.listen, args=(heard.put, stop), daemon=True)
        thread.start()
        try:
            self._until_listening(heard)
            yield heard
        finally:
            stop.set()
            thread.join(DEADLINE)
            assert not thread.is_alive(), "listen did not return after stop was set"

    def _until_listening(self, heard: queue.Queue[str]) -> None:
        """Publish until the listener is up: when it starts to hear is its own affair."""
        for number in range(int(DEADLINE * 10)):
            self.publish(f"hello {number}", topic="hello")
            try:
                heard.get(timeout=0.1)
            except queue.Empty:
                continue
            return
        raise AssertionError("the listener never heard anything")

    def _hears(self, heard: queue.Queue[str], topic: str) -> None:
        while heard.get(timeout=DEADLINE) not in (topic, ""):
            pass

    def test_a_publish_of_another_instance_is_heard(self) -> None:
        with self.listening(self.second_handle()) as heard:
            self.publish("a")
            self._hears(heard, TOPIC)

    def test_every_topic_of_a_call_is_heard(self) -> None:
        topics = [f"{number}-{'t' * 190}" for number in range(50)]
        with self.listening(self.second_handle()) as heard:
            self.store.append([self.message(topic, topic=topic) for topic in topics])
            missing = set(topics)
            while missing:
                topic = heard.get(timeout=DEADLINE)
                missing = missing - {topic} if topic else set()

    def test_listening_ends_when_told(self) -> None:
        for _ in range(2):
            with self.listening(self.second_handle()):
                pass
