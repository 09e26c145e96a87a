"""Breaks of what engine/journal relies on."""

from __future__ import annotations

from assertions.planted import Break

PLANTED: list[Break] = [
    Break(
        "journal: ids of a reactor rise",
        "journal/journal.py",
        "    if now <= r.clock:",
        "    if now < r.clock:",
        ("tests/durable/test_acknowledgement.py::test_acknowledgements_keep_the_order_of_the_messages",),
    ),
    Break(
        "journal: an id's low bits are its reactor",
        "journal/journal.py",
        "    now -= now % _CLOCK_STEP\n",
        "",
        ("tests/durable/test_acknowledgement.py::test_puback_and_pubrec",),
    ),
    Break(
        "journal: a reactor alone records in its section",
        "queues/retaining.py",
        "        note_retained(r, passage_message(p, r.tally))",
        "        note_retained(r.common.reactors[0], passage_message(p, r.tally))",
        ("tests/durable/test_restart_retained.py::test_publishers_on_two_reactors_agree_with_the_store",),
    ),
    Break(
        "journal: the open section is not committed",
        "journal/journal.py",
        "        r.section.number += 1\n",
        "",
        (
            "tests/durable/test_acknowledgement.py::test_what_is_acknowledged_meanwhile_is_never_written",
            "tests/conformance/test_qos1.py",
        ),
    ),
    Break(
        "journal: an entry names its record in the open section",
        "journal/journal.py",
        "    return cython.cast(uint32_t, r.section.records.size() - 1)\n",
        "    return cython.cast(uint32_t, r.section.records.size())\n",
        ("tests/durable/test_acknowledgement.py::test_what_is_acknowledged_meanwhile_is_never_written",),
    ),
    Break(
        "journal: no more records are live than there are",
        "journal/journal.py",
        "    if r.section.live == 0 and",
        "    if r.section.live <= 1 and",
        ("tests/durable/test_acknowledgement.py::test_puback_and_pubrec",),
    ),
    Break(
        "ledger: a free slot has no promise",
        "journal/ledger.py",
        "    found.kind = PROMISE_VOID\n",
        "",
        ("tests/durable/test_acknowledgement.py::test_puback_and_pubrec",),
    ),
    Break(
        "ledger: there is a slot for each promise",
        "journal/ledger.py",
        "    r.ledger.count -= 1\n",
        "",
        ("tests/durable/test_acknowledgement.py::test_puback_and_pubrec",),
    ),
    Break(
        "ledger: nothing stands behind what is owed last",
        "journal/ledger.py",
        "    s.last_owed = slot\n",
        "    if not owed:\n        s.last_owed = slot\n",
        ("tests/durable/test_acknowledgement.py::test_acknowledgements_keep_the_order_of_the_messages",),
    ),
    Break(
        "ledger: slots are due in the order of sections",
        "journal/ledger.py",
        "    if promise.section:\n        await_section(r, slot, promise.section)\n",
        "    await_section(r, slot, promise.section)\n",
        ("tests/durable/test_acknowledgement.py::test_acknowledgements_keep_the_order_of_the_messages",),
    ),
    Break(
        "capturing: a head says how long its message is",
        "journal/capturing.py",
        "    head.client_id_size = cython.cast(uint16_t, name.size)\n",
        "    head.client_id_size = cython.cast(uint16_t, p.topic.size)\n",
        ("tests/durable/test_streams.py::test_what_was_acknowledged_is_there_in_order_after_a_restart",),
    ),
    Break(
        "capturing: what is in the open section is counted",
        "journal/capturing.py",
        "    r.captured_bytes += added\n",
        "",
        ("tests/durable/test_streams.py::test_what_was_acknowledged_is_there_in_order_after_a_restart",),
    ),
]
