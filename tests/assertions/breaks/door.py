"""Breaks of what engine/door relies on."""

from __future__ import annotations

from assertions.planted import Break

PLANTED: list[Break] = [
    Break(
        "engine: a reactor ends once",
        "turn/reactor.py",
        "    post_event(r.common, new_event(EVENT_STOPPED, r.index))\n",
        "    post_event(r.common, new_event(EVENT_STOPPED, r.index))\n"
        "    post_event(r.common, new_event(EVENT_STOPPED, r.index))\n",
        ("tests/conformance/test_qos1.py",),
    ),
    Break(
        "engine: what was made has been freed",
        "clients/closing.py",
        "    r.tally[LIVE_CONNECTIONS] -= 1\n",
        "",
        ("tests/adversity/test_goodbye.py::test_reason_reaches_who_still_sends",),
    ),
    Break(
        "conversion: a CONNECT that is decided on is whole",
        "clients/connecting.py",
        "    c.connect_packet = keep_packet(r, first, body, size)\n",
        "    c.connect_packet = keep_packet(r, first, body, size - 1)\n",
        ("tests/unit/test_broker_engine.py::test_an_authenticator_refuses_in_every_version",),
    ),
    Break(
        "conversion: a SUBSCRIBE that is decided on is whole",
        "clients/subscribing.py",
        "        c.pending_packet = keep_packet(r, first, body, size)\n",
        "        c.pending_packet = keep_packet(r, first, body, size - 1)\n",
        ("tests/unit/test_broker_engine.py::test_plugins_see_and_veto",),
    ),
    Break(
        "conversion: a listener that is freed has no connections",
        "clients/closing.py",
        "    left = add_i64(cython.address(c.listener.connection_count), -1, RELAXED)\n",
        "",
        ("tests/adversity/test_goodbye.py::test_reason_reaches_who_still_sends",),
    ),
    Break(
        "columns: each has a number for each row",
        "door/columns.py",
        "    columns.qos.push_back(head.qos)\n",
        "",
        ("tests/durable/test_streams.py::test_every_property_has_its_column",),
    ),
    Break(
        "columns: each has a text for each row",
        "door/columns.py",
        "    _pad(texts, rows)\n    _pad_bits",
        "    _pad_bits",
        (
            "tests/durable/test_streams.py::test_every_property_has_its_column",
            "tests/durable/test_streams.py::test_what_was_acknowledged_is_there_in_order_after_a_restart",
        ),
    ),
    Break(
        "columns: messages end where their section does",
        "door/columns.py",
        ", head.payload_size) + head.properties_size\n",
        ", head.payload_size) + head.properties_size + head.packet_id\n",
        ("tests/durable/test_streams.py::test_what_was_acknowledged_is_there_in_order_after_a_restart",),
    ),
    Break(
        "keeper access: a stream that changes was added",
        "door/keeper_access.py",
        "        self.stream_count += 1\n        self.change_stream(number, [], filters)\n",
        "        self.change_stream(number, [], filters)\n        self.stream_count += 1\n",
        ("tests/durable/test_streams.py::test_every_property_has_its_column",),
    ),
    Break(
        "keeper access: a reactor owns a queue",
        "queues/queueing.py",
        "    r.common.queue_owners[s.number] = r.index\n",
        "    r.common.queue_owners[s.number] = s.number\n",
        ("tests/durable/test_expiry.py::test_in_queues_of_absent_clients[3]",),
    ),
    Break(
        "keeper work: a row has the id of its message",
        "journal/journal.py",
        "        record.id = message.id\n",
        "",
        ("tests/durable/test_acknowledgement.py::test_puback_and_pubrec",),
    ),
    Break(
        "keeper work: a reactor has given a new message its id",
        "journal/journal.py",
        "    result.clock = now | r.index\n",
        "    result.clock = now | (r.index + 1)\n",
        ("tests/durable/test_acknowledgement.py::test_puback_and_pubrec",),
    ),
    Break(
        "restoring: who owns a queue has its session",
        "queues/queueing.py",
        "    r.common.queue_owners[s.number] = r.index\n",
        "    r.common.queue_owners[s.number] = (r.index + 1) % r.common.reactors.size()\n",
        (
            "tests/durable/test_restart_queues.py::test_what_was_in_flight_comes_first_with_its_packet_identifiers",
        ),
    ),
    Break(
        "arrivals: what was in flight comes back to its place",
        "queues/arrivals.py",
        "    while box.tail < place:",
        "    while box.tail <= place:",
        ("tests/unit/test_rows.py::test_rows_that_follow_the_layouts_are_taken",),
    ),
    Break(
        "arrivals: places were looked at before a session is installed",
        "door/session_moves.py",
        "        elif entry.place <= last or entry.place - first >= 65535:\n",
        "        elif entry.place > last and entry.place - first >= 65535:\n",
        ("tests/durable/test_session_moves.py::test_rows_that_cannot_be_read_are_refused_whole",),
    ),
    Break(
        "dismantling: no connection outlives its reactor",
        "clients/closing.py",
        "    left: int64_t = add_i64(cython.address(r.common.connection_count), -1, RELAXED)\n",
        "    left: int64_t = 0\n",
        ("tests/adversity/test_goodbye.py::test_reason_reaches_who_still_sends",),
    ),
    Break(
        "dismantling: sessions that have ended are not counted",
        "queues/sessions.py",
        "        left: int64_t = add_i64(cython.address(common.session_count), -1, RELAXED)\n",
        "        left: int64_t = 0\n",
        ("tests/adversity/test_goodbye.py::test_reason_reaches_who_still_sends",),
    ),
    Break(
        "dismantling: subscriptions that have ended are not counted",
        "queues/sessions.py",
        "    add_i64(cython.address(r.common.subscription_count), -taken, RELAXED)\n",
        "",
        ("tests/adversity/test_rates.py::test_acknowledgements_are_no_messages",),
    ),
    Break(
        "plugin access: a filter that plugins want no more was in the index",
        "door/plugin_access.py",
        "        self.filters = wanted\n",
        "        self.filters = {**wanted, b'never': 1}\n",
        ("tests/adversity/test_held_messages.py::test_filters_come_and_go_while_clients_publish",),
    ),
    Break(
        "node batches: one that is dealt out was checked",
        "door/node_batches.py",
        "        if _record_size(cython.address(record)) > left:\n",
        "        if _record_size(cython.address(record)) > left + 1:\n",
        ("tests/adversity/test_node_batches.py::test_a_batch_that_is_wrong_is_refused_whole",),
    ),
    Break(
        "node batches: what goes out is whole records",
        "door/node_batches.py",
        "        end += size\n",
        "        end += size - 1\n",
        ("tests/adversity/test_node_batches.py::test_a_batch_that_is_wrong_is_refused_whole",),
    ),
]
