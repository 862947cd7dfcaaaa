"""Messages, deliveries, and the cancellation signal of a run."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from queue_lib import Cancellation, Claimed, Delivery, Message

SECONDS = 10.0  # a deadline for what should take none


def delivery() -> Delivery:
    return Delivery(
        topic="orders",
        payload=b"hunter2",
        key="42",
        id="m-1",
        headers={"trace": "1"},
        deliver_at=datetime(2026, 1, 1, tzinfo=UTC),
        priority=-3,
        delivery_id="d-1",
        group="billing",
        attempt=2,
    )


# -- messages and deliveries -------------------------------------------------------------------


def test_a_message_needs_a_topic_and_nothing_else() -> None:
    message = Message("orders")
    assert dataclasses.asdict(message) == {
        "topic": "orders",
        "payload": b"",
        "key": "",
        "id": "",
        "headers": None,
        "deliver_at": None,
        "published_at": None,
        "priority": 0,
    }
    with pytest.raises(TypeError):
        Message()  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        message.pirority = 1  # type: ignore[attr-defined]  # a slip of the pen is no new field


def test_positions_are_topic_payload_key_id_headers() -> None:
    assert Message("t", b"p", "k", "i", {"h": "v"}) == Message(
        topic="t", payload=b"p", key="k", id="i", headers={"h": "v"}
    )


def test_no_payload_is_ever_shown() -> None:
    given = delivery()
    claim = Claimed("d-1", "token", "billing", 2, given)
    for value in (given, claim, Message("orders", payload=b"hunter2"), [given]):
        for text in (repr(value), str(value), f"{value}", f"{value!a}"):
            assert "hunter2" not in text
            assert "orders" in text


def test_a_delivery_is_a_message_and_tells_why_its_run_was_cancelled() -> None:
    given = delivery()
    assert isinstance(given, Message)
    assert given.cancel_reason is None
    assert not given.cancelled
    given.cancelled.cancel("lease lost")
    assert given.cancel_reason == "lease lost"
    assert given.cancelled


def test_deliveries_do_not_share_a_signal_nor_compare_it() -> None:
    first, second = delivery(), delivery()
    first.cancelled.cancel("closed")
    assert not second.cancelled
    assert first == second


def test_a_copy_in_this_process_keeps_the_signal() -> None:
    given = delivery()
    given.cancelled.wait(0)
    copies = [copy.copy(given), copy.deepcopy(given), dataclasses.replace(given, attempt=3)]
    fields = dataclasses.asdict(given)
    given.cancelled.cancel("closed")
    assert [twin.cancel_reason for twin in copies] == ["closed"] * 3
    assert fields["cancelled"].is_set()


def test_pickling_takes_a_snapshot_that_works_elsewhere() -> None:
    given = delivery()
    given.cancelled.wait(0)  # also once there is an event, which cannot be pickled
    before = pickle.loads(pickle.dumps(given))  # noqa: S301
    given.cancelled.cancel("lease lost")
    after = pickle.loads(pickle.dumps(given))  # noqa: S301
    assert before == after == given
    assert (before.cancel_reason, after.cancel_reason) == (None, "lease lost")
    assert not before.cancelled.wait(0)
    assert after.cancelled.wait(0)


# -- the signal --------------------------------------------------------------------------------


def test_the_first_reason_stays() -> None:
    signal = Cancellation()
    assert (signal.reason, signal.is_set(), bool(signal), signal.wait(0)) == (
        None, False, False, False,
    )  # fmt: skip
    signal.cancel("lease lost")
    signal.cancel("closed")
    assert (signal.reason, signal.is_set(), bool(signal), signal.wait(0), signal.wait()) == (
        "lease lost", True, True, True, True,
    )  # fmt: skip


def test_only_waiting_makes_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[threading.Event] = []
    event = threading.Event

    def counted() -> threading.Event:
        made.append(event())
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr("queue_lib.message.threading.Event", counted)
        signal, cancelled = Cancellation(), Cancellation()
        assert not signal.is_set()
        assert not signal
        assert signal.reason is None
        cancelled.cancel("closed")
        assert cancelled.wait()
        assert made == []
        signal.wait(0)
        signal.wait(0)
        assert len(made) == 1


def test_every_waiter_is_woken_whenever_the_signal_comes() -> None:
    """Waiters that make the event, find it made, or come too late, against the one that sets it."""
    waiters, rounds = 4, 200
    start = threading.Barrier(waiters + 1)
    signals = [Cancellation() for _ in range(rounds)]

    def wait() -> bool:
        woken = []
        for signal in signals:
            start.wait(SECONDS)
            woken.append(signal.wait(SECONDS))
        return all(woken)

    def cancel() -> bool:
        for signal in signals:
            start.wait(SECONDS)
            signal.cancel("closed")
        return True

    with ThreadPoolExecutor(waiters + 1) as pool:
        ended = [pool.submit(wait) for _ in range(waiters)] + [pool.submit(cancel)]
        assert all(future.result(SECONDS) for future in ended)


def test_of_two_that_cancel_at_once_one_gives_the_reason() -> None:
    start = threading.Barrier(2)
    signals = [Cancellation() for _ in range(200)]

    def cancel(reason: str) -> list[str | None]:
        seen = []
        for signal in signals:
            start.wait(SECONDS)
            signal.cancel(reason)
            seen.append(signal.reason)
        return seen

    with ThreadPoolExecutor(2) as pool:
        closed, lost = pool.map(cancel, ["closed", "lease lost"], timeout=SECONDS)
    assert closed == lost == [signal.reason for signal in signals]
