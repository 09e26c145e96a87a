"""Breaks of what engine/turn relies on."""

from __future__ import annotations

from assertions.planted import Break

MOVED = "tests/conformance/test_reactors.py::test_sessions_move"
IN_PIECES = "tests/conformance/test_connect.py"

PLANTED: list[Break] = [
    Break(
        "departing: connections go after all other mail of their turn",
        "link/mail.py",
        "        if r.outgoing[index].empty():\n",
        "        if r.outgoing[index].empty() or not r.departing.empty():\n",
        ("tests/durable/test_moves.py",),
    ),
    Break(
        "departing: a connection that goes has left its slot",
        "turn/reactor.py",
        "        remove_connection(r, c)\n        c.touched",
        "        c.touched",
        (MOVED,),
    ),
    Break(
        "gathering: counts of what comes only rise",
        "turn/gathering.py",
        "g.packets, g.turns = now_ns, 0, messages, packets, turns",
        "g.packets, g.turns = now_ns, 0, packets, messages, turns",
        ("tests/conformance/test_qos1.py",),
    ),
    Break(
        "gathering: a turn ends after it began",
        "turn/reactor.py",
        "note_turn(r, began_ns, ended_ns)",
        "note_turn(r, ended_ns, began_ns)",
        ("tests/conformance/test_qos1.py",),
    ),
    Break(
        "listening: the key of a listening socket bears the mark",
        "turn/listening.py",
        "add_timer(r, until_ms, key, TIMER_LISTENING)",
        "add_timer(r, until_ms, key & ~_MARK, TIMER_LISTENING)",
        ("tests/adversity/test_rates.py::test_connections_wait_in_the_kernel_for_their_listener_s_bucket",),
    ),
    Break(
        "listening: a key names a socket of the list",
        "turn/listening.py",
        "watch_listening(r, _MARK | (r.listening.size() - 1))",
        "watch_listening(r, _MARK | r.listening.size())",
        ("tests/conformance/test_qos1.py",),
    ),
    Break(
        "postman: a connection that comes was sent here",
        "turn/reactor.py",
        "        remove_connection(r, c)\n        c.touched = False\n",
        "        remove_connection(r, c)\n        c.leaving = False\n",
        (MOVED,),
    ),
    Break(
        "postman: a new receiver has a number of its own",
        "door/engine.py",
        "        self.next_receiver += 1\n",
        "",
        ("tests/unit/test_broker_engine.py",),
    ),
    Break(
        "postman: failures of the store are counted upwards",
        "door/keeper_work.py",
        "        work.common.failures += 1\n",
        "",
        ("tests/durable/test_failure.py::test_publishers_are_told",),
    ),
    Break(
        "reactor: one that is freed has no connections",
        "clients/closing.py",
        "    r.free_slots.push_back(c.slot)\n",
        "",
        ("tests/conformance/test_qos1.py",),
    ),
    Break(
        "reactor: a connection that is settled was touched",
        "turn/reactor.py",
        "    r.touched.clear()\n",
        "",
        ("tests/conformance/test_qos1.py",),
    ),
    Break(
        "reactor: no more mail is acted on than came",
        "turn/reactor.py",
        "        handle_mail(r, cython.address(r.reading[r.mail_at - 1]))\n",
        "        handle_mail(r, cython.address(r.reading[r.mail_at - 1]))\n    r.mail_at += 1\n",
        ("tests/conformance/test_authorisation.py",),
    ),
    Break(
        "reading: a packet that is handled has come whole",
        "turn/reading.py",
        "        if header.body_size > size - at - header.header_size:\n            break\n",
        "",
        (IN_PIECES,),
    ),
    Break(
        "reading: what has come of a packet is in one buffer",
        "turn/reading.py",
        "        memcpy(r.read_buffer, c.input, kept)\n        _drop_input(r, c)\n",
        "        memcpy(r.read_buffer, c.input, kept)\n",
        (IN_PIECES,),
    ),
    Break(
        "reading: no more is kept than the buffer has room for",
        "turn/reading.py",
        "a trickle of bytes is not\n        c.input_size += got\n",
        "a trickle of bytes is not\n        c.input_size += 2 * got\n",
        ("tests/conformance/test_packet_size.py::test_large_packets_behind_each_other",),
    ),
    Break(
        "arriving: what comes is from a node that has a slot",
        "door/node_access.py",
        "            mail.number = node\n            mail.token",
        "            mail.number = node + 16\n            mail.token",
        ("tests/adversity/test_node_batches.py::test_what_is_good_is_delivered_and_answered",),
    ),
    Break(
        "arriving: a batch ends where its last record does",
        "turn/arriving.py",
        "        batch.at += record.payload_size\n",
        "        batch.at += record.payload_size + 1\n",
        ("tests/adversity/test_node_batches.py::test_answers_to_nothing_are_counted",),
    ),
]
