"""Breaks of what engine/link relies on."""

from __future__ import annotations

from assertions.planted import Break

TRACE = "tests/unit/test_trace.py"
SPANS = "tests/unit/test_spans.py"
PLANTED: list[Break] = [
    Break(
        "backpressure: who goes on was paused",
        "link/backpressure.py",
        "        feeders.erase(feeders.begin())\n",
        "",
        ("tests/adversity/test_backpressure.py::test_nothing_is_lost_while_the_receiver_comes_back_in_time",),
    ),
    Break(
        "backpressure: nobody waits for a receiver that is slow",
        "link/backpressure.py",
        "    if strain.slow or feeder == 0:\n",
        "    if feeder == 0:\n",
        ("tests/adversity/test_backpressure.py::test_after_the_pause_qos_0_is_dropped_and_counted",),
    ),
    Break(
        "backpressure: a strained receiver knows its place",
        "link/backpressure.py",
        "    strain.place = r.strained.size()\n    r.strained.push_back(s)\n",
        "    r.strained.push_back(s)\n    strain.place = r.strained.size()\n",
        ("tests/adversity/test_backpressure.py::test_nothing_is_lost_while_the_receiver_comes_back_in_time",),
    ),
    Break(
        "tracing: what was reported of an output still waits in it",
        "turn/reactor.py",
        "    sent: cython.bint = flush_output(r, c)\n    note_flushed(c)\n",
        "    sent: cython.bint = flush_output(r, c)\n",
        (f"{TRACE}::test_a_client_is_traced_from_its_connect_to_its_end",),
    ),
    Break(
        "tracing: what goes out is whole packets",
        "link/tracing.py",
        "        at = body + there\n",
        "        at = body + header.body_size\n",
        (f"{TRACE}::test_one_that_is_connected_and_large_payloads",),
    ),
    Break(
        "spans: no more a second than a reactor's share",
        "link/spans.py",
        "        r.tally[C_SPANS_LEFT_OUT] += 1\n        return False\n",
        "        r.tally[C_SPANS_LEFT_OUT] += 1\n",
        (f"{SPANS}::test_so_many_a_second",),
    ),
    Break(
        "spans: a message goes on in the trace that it came in",
        "link/spans.py",
        "span.own) + TRACE_PARENT_SPAN_AT)\n    at:",
        "span.own) + 3)\n    at:",
        (f"{SPANS}::test_every_receiver_has_a_span_and_a_wait_in_a_queue_shows",),
    ),
    Break(
        "drops: what is gathered together is counted together",
        "link/drops.py",
        "        drop.counter = counter\n",
        "",
        ("tests/adversity/test_backpressure.py::test_after_the_pause_qos_0_is_dropped_and_counted",),
    ),
    Break(
        "drops: of whom is reported something was dropped",
        "link/drops.py",
        "    drop.messages += messages\n",
        "",
        ("tests/adversity/test_backpressure.py::test_after_the_pause_qos_0_is_dropped_and_counted",),
    ),
    Break(
        "lingering: the oldest is open",
        "link/lingering.py",
        "    r.lingering[index].fd = -1\n"
        "    r.lingering_count -= 1\n"
        "    while not r.lingering.empty() and r.lingering.front().fd < 0:\n"
        "        count_steps(1)\n"
        "        r.lingering.pop_front()\n"
        "        r.lingering_first += 1\n",
        "    r.lingering_count -= 1\n"
        "    while not r.lingering.empty() and r.lingering.front().fd < 0:\n"
        "        count_steps(1)\n"
        "        r.lingering.pop_front()\n"
        "        r.lingering_first += 1\n"
        "    r.lingering[index].fd = -1\n",
        ("tests/conformance/test_malformed.py::test_fixed_header_flags",),
    ),
    Break(
        "lingering: those that are open are among all",
        "link/lingering.py",
        "    r.lingering_count -= 1\n",
        "",
        ("tests/conformance/test_malformed.py::test_fixed_header_flags",),
    ),
    Break(
        "mail: what was taken before is acted on",
        "turn/reactor.py",
        "        r.reading.clear()\n        r.mail_at = 0\n",
        "        r.reading.clear()\n",
        ("tests/conformance/test_reactors.py::test_messages_cross",),
    ),
    Break(
        "mail: an inbox says how much is in it",
        "link/mail.py",
        "    store_int(cython.address(r.inbox_count), 0, RELAXED)\n",
        "",
        ("tests/conformance/test_reactors.py::test_messages_cross",),
    ),
    Break(
        "output: a reactor alone writes to its connections",
        "clients/placement.py",
        "    place_connection(r, c)\n    touch(r, c)\n",
        "    touch(r, c)\n    place_connection(r, c)\n",
        ("tests/adversity/test_placement.py::test_a_publisher_moves_and_keeps_its_order",),
    ),
    Break(
        "output: start <= end <= capacity",
        "link/output.py",
        "        while capacity < used + size:",
        "        while capacity < size:",
        ("tests/adversity/test_backpressure.py::test_nothing_is_lost_while_the_receiver_comes_back_in_time",),
    ),
    Break(
        "output: large payloads count what is left of them",
        "link/output.py",
        "            large.bytes -= size\n",
        "",
        ("tests/listeners/test_websocket.py::test_messages_of_all_sizes_come_through",),
    ),
    Break(
        "rates: who waits for a bucket is paused",
        "link/rates.py",
        "    c.pause_count += 1\n",
        "",
        ("tests/adversity/test_rates.py::test_a_client_s_messages_wait_for_its_bucket",),
    ),
    Break(
        "rates: packets that are counted have come whole",
        "link/rates.py",
        "        at += header.header_size + header.body_size\n",
        "        at += 2 * header.header_size + header.body_size\n",
        ("tests/adversity/test_rates.py::test_acknowledgements_are_no_messages",),
    ),
    Break(
        "reports: what somebody waits for is never dropped",
        "clients/connecting.py",
        "certificate_of(c.transport, cython.address(event.data))\n        post_event(r.common, event)\n",
        "certificate_of(c.transport, cython.address(event.data))\n        post_report(r, event)\n",
        ("tests/unit/test_broker_engine.py::test_an_authenticator_refuses_in_every_version",),
    ),
    Break(
        "reports: an event about a connection comes from where that is",
        "clients/closing.py",
        "    if c.doom_fault:\n        r.tally[C_FAULTS] += 1\n",
        "    remove_connection(r, c)\n    if c.doom_fault:\n        r.tally[C_FAULTS] += 1\n",
        ("tests/adversity/test_goodbye.py::test_reason_reaches_who_still_sends",),
    ),
    Break(
        "timers: none is due before the first",
        "link/timers.py",
        "        if r.timers[parent].due_ms <= r.timers[at].due_ms:",
        "        if r.timers[parent].due_ms >= r.timers[at].due_ms:",
        ("tests/conformance/test_expiry.py::test_queue_time_is_subtracted",),
    ),
    Break(
        "timers: the one that comes next is the earliest",
        "link/timers.py",
        "        if child + 1 < size and r.timers[child + 1].due_ms < r.timers[child].due_ms:\n"
        "            child += 1\n",
        "",
        (
            "tests/conformance/test_will.py",
            "tests/durable/test_many_at_once.py::test_sessions_that_expire_and_wills_that_are_due",
        ),
    ),
    Break(
        "timers: a connection that gets one is here",
        "clients/closing.py",
        "    place_connection(r, c)\n"
        "    c.deadline_ms = r.now_ms + r.common.limits.connect_timeout_ms\n"
        "    time_connection(r, c, c.deadline_ms)\n",
        "    c.deadline_ms = r.now_ms + r.common.limits.connect_timeout_ms\n"
        "    time_connection(r, c, c.deadline_ms)\n"
        "    place_connection(r, c)\n",
        ("tests/adversity/test_goodbye.py::test_reason_reaches_who_still_sends",),
    ),
    Break(
        "visits: a client is counted before it has a session",
        "clients/connecting.py",
        "            take_names(r, c, letter)\n            review(r, c)\n",
        "            take_names(r, c, letter)\n            _let_in(r, c, cython.NULL, data)\n",
        ("tests/unit/test_broker_engine.py::test_enhanced_authentication",),
    ),
    Break(
        "wrapping: what is wrapped is something",
        "link/wrapping.py",
        "            if t.phase != OPEN or is_drained(out):",
        "            if t.phase != OPEN:",
        ("tests/adversity/test_wrapped.py::test_who_ends_while_it_is_throttled_is_ended_after_it",),
    ),
    Break(
        "wrapping: a client behind a proxy is counted once",
        "turn/listening.py",
        "    if listener.connections_per_address_max and not listener.proxied:\n",
        "    if listener.connections_per_address_max:\n",
        ("tests/adversity/test_rates.py::test_behind_a_proxy_the_client_s_address_counts",),
    ),
]
