"""Breaks of what engine/base and engine/state rely on."""

from __future__ import annotations

from assertions.planted import Break

PLANTED: list[Break] = [
    Break(
        "allocation: what is released was allocated",
        "base/allocation.py",
        "        out_of_memory()\n    add_i64(cython.address(_live_blocks), 1, RELAXED)\n    return block\n",
        "        out_of_memory()\n    return block\n",
        (
            "tests/unit/test_engine_trees.py::test_many_sessions_on_one_filter",
            "tests/unit/test_engine_trees.py::test_set_keeps_its_members_through_every_size",
        ),
    ),
    Break(
        "allocation: pages that are given back were mapped",
        "base/allocation.py",
        "    add_i64(cython.address(_live_blocks), 1, RELAXED)\n    return base + skipped\n",
        "    return base + skipped\n",
        ("tests/unit/test_engine_trees.py::test_subscription_matches",),
    ),
    Break(
        "allocation: a table and its first part are of whole huge pages",
        "index/levels.py",
        "HUGE_PAGE_BYTES if tree.slabs.empty() else 0",
        "HUGE_PAGE_BYTES // 2 if tree.slabs.empty() else 0",
        ("tests/unit/test_engine_trees.py::test_subscription_matches",),
    ),
    Break(
        "guard: a place that is given back was taken",
        "clients/closing.py",
        "        give_place(cython.address(r.common.guard), c.address)\n",
        "        give_place(cython.address(r.common.guard), c.address)\n"
        "        give_place(cython.address(r.common.guard), c.address)\n",
        ("tests/adversity/test_rates.py::test_an_address_has_no_more_connections_than_it_may",),
    ),
    Break(
        "guard: each client has one place in the order",
        "base/guarding.py",
        "        guard.order.push_back(visitor)\n",
        "    guard.order.push_back(visitor)\n",
        ("tests/adversity/test_flapping.py::test_one_too_many_connects_are_answered_with_a_ban_that_ends",),
    ),
    Break(
        "a lock is taken alone, or INNER under OUTER",
        "door/engine.py",
        "        unlock_retained(self.common.retained)\n"
        "        lock_subscriptions(self.common.subscriptions)\n",
        "        lock_subscriptions(self.common.subscriptions)\n"
        "        unlock_retained(self.common.retained)\n",
        ("tests/adversity/test_rates.py::test_acknowledgements_are_no_messages",),
    ),
    Break(
        "a thread releases locks that it has taken",
        "link/reports.py",
        "    common.events.push_back(event)\n",
        "    common.events.push_back(event)\n    unlock(cython.address(common.events_lock))\n",
        ("tests/adversity/test_goodbye.py::test_reason_reaches_who_still_sends",),
    ),
    Break(
        "no message is delivered, sent or freed under a lock",
        "queues/retaining.py",
        "    unlock_exclusive(index)\n    if full:\n",
        "    if old != cython.NULL:\n"
        "        release_message(cython.cast(cython.pointer[Message], old), r.tally)\n"
        "        old = cython.NULL\n"
        "    unlock_exclusive(index)\n"
        "    if full:\n",
        ("tests/conformance/test_retained.py::test_last_one_only",),
    ),
    Break(
        "who releases a message holds it",
        "queues/outbox.py",
        "        release_message(entry.message, tally)\n",
        "        release_message(entry.message, tally)\n        release_message(entry.message, tally)\n",
        ("tests/conformance/test_qos1.py",),
    ),
    Break(
        "message: that of a passage has its id",
        "base/message.py",
        "    own.message = cython.NULL\n",
        "",
        (
            "tests/conformance/test_will.py::test_published_when_the_connection_breaks",
            "tests/durable/test_windows.py::test_a_shared_group_drains_what_was_queued_for_its_member",
        ),
    ),
    Break(
        "handles: a reactor alone looks up its connections",
        "link/backpressure.py",
        "        send_number_mail(r, reactor_of(feeder), MAIL_PAUSE, feeder)\n        return\n",
        "        pause_feeder(r.common.reactors[reactor_of(feeder)], feeder)\n        return\n",
        ("tests/durable/test_full_queues.py::test_who_reads_loses_nothing",),
    ),
    Break(
        "handles: one names what it was made for",
        "link/backpressure.py",
        "    if reactor_of(feeder) != r.index:\n"
        "        send_number_mail(r, reactor_of(feeder), MAIL_PAUSE, feeder)\n"
        "        return\n",
        "",
        ("tests/durable/test_full_queues.py::test_who_reads_loses_nothing",),
    ),
    Break(
        "wall clock: ids are as high as they were raised",
        "state/wall_clock.py",
        "cython.address(known), offset_ns, False",
        "cython.address(known), known, False",
        (
            "tests/durable/test_clock.py::test_a_session_outlives_a_restart_with_a_clock_that_was_or_is_wrong[offsets0]",
        ),
    ),
]
