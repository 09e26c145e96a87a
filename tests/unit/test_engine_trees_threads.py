"""Readers that match without the GIL while a writer changes the index see whole states only."""

from __future__ import annotations

import threading
from collections.abc import Callable

from unit.trees_kit import walk_of

from tidemq.engine.index.retained_index import RetainedIndexView
from tidemq.engine.index.subscription_view import SubscriptionIndexView


def run_beside(work: Callable[[], object], *others: Callable[[], object]) -> None:
    """Runs ``work`` while each of ``others`` runs over and over in a thread."""
    done = threading.Event()
    start = threading.Barrier(len(others) + 1)
    errors: list[BaseException] = []

    def repeat(other: Callable[[], object]) -> None:
        start.wait()
        try:
            other()
            while not done.is_set():
                other()
        except BaseException as error:  # noqa: BLE001 (raised by who joins the thread)
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    start.wait()
    try:
        work()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not errors, errors


def test_matches_while_subscriptions_change() -> None:
    index = SubscriptionIndexView()
    topics = [b"site/%d/device/%d" % (number % 7, number) for number in range(500)]
    for topic in topics:  # these stay: each topic matches two of them
        index.put(topic, 1)
    index.put(b"site/+/device/#", 2)
    fewest, most = [], []

    def read() -> None:
        _, low, high, _ = index.match_all(topics, 4)
        fewest.append(low)
        most.append(high)

    def write() -> None:
        for _ in range(30):
            for number, topic in enumerate(topics):
                index.put(topic, 3)
                index.put(b"site/%d/+/%d" % (number % 7, number), 4, group=b"g")
                index.put(b"other/%d/%d" % (number, number), 5)  # lets the table split under the readers
            for number, topic in enumerate(topics):
                index.remove(topic, 3)
                index.remove(b"site/%d/+/%d" % (number % 7, number), 4, group=b"g")
                index.remove(b"other/%d/%d" % (number, number), 5)

    run_beside(write, read, read)
    assert min(fewest) == 2
    assert max(most) <= 4
    assert index.match_all(topics)[:3] == (1000, 2, 2)


def test_walks_while_messages_come_and_go() -> None:
    index = RetainedIndexView()
    stay = {number * 2 + 1 for number in range(300)}
    for message in stay:
        index.put(b"a/%d/x" % message, message)

    def walk() -> None:
        view = walk_of(index, b"a/+/x")
        found: list[int] = []
        while view.more:
            found += view.next_slice(7)
        kept = [message for message in found if message in stay]
        assert len(kept) == len(stay)
        assert set(kept) == stay

    def write() -> None:
        for _ in range(60):
            for message in range(2, 600, 2):
                index.put(b"a/%d/x" % message, message)
            for message in range(2, 600, 2):
                index.remove(b"a/%d/x" % message)

    run_beside(write, walk, walk)
    assert len(index) == len(stay)
