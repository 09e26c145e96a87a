"""Breaks of what engine/clients relies on."""

from __future__ import annotations

from assertions.planted import Break

LISTED = "tests/unit/test_monitor.py::test_every_client_is_listed_once_whatever_the_pages_are"
INQUIRIES = "tests/unit/test_inquiries.py"
HELD = "tests/adversity/test_held_messages.py"
RULES = "tests/conformance/test_rules.py"
ACKNOWLEDGED = "tests/durable/test_acknowledgement.py"
MOVES = "tests/adversity/test_placement.py::test_a_publisher_moves_and_keeps_its_order"
NOT_KEPT = "tests/conformance/test_session.py::test_clean_session_is_not_kept"

LET_IN: list[Break] = [
    Break(
        "inquiries: a client's is answered where the client lives",
        "clients/inquiries.py",
        "    if found.reactor != r.index or found.moving:\n        r.outgoing[found.reactor].push_back(mail",
        "    if found.moving:\n        r.outgoing[found.reactor].push_back(mail",
        (f"{INQUIRIES}::test_a_client_is_found_on_whichever_reactor_it_lives",),
    ),
    Break(
        "inquiries: an answer has no more rows than were asked for",
        "clients/inquiries.py",
        "    return q.messages.size() + q.subscribers.size() >= q.rows_max or",
        "    return q.messages.size() + q.subscribers.size() > q.rows_max or",
        (f"{INQUIRIES}::test_a_page_of_many_subscribers_of_one_filter",),
    ),
    Break(
        "authorising: what is found by rules is known by their number",
        "clients/authorising.py",
        "        c.rules_number = add_i64(numbers, 1, RELAXED) if c.rules.personal else c.rules.number\n",
        "        if c.rules.personal:\n            c.rules_number = add_i64(numbers, 1, RELAXED)\n",
        (RULES,),
    ),
    Break(
        "authorising: room for a judgement is made in its entry",
        "clients/authorising.py",
        "(entry.next_judgement + 1) % JUDGEMENTS",
        "entry.next_judgement + 1",
        (f"{RULES}::test_clients_of_one_topic_are_judged_each_for_itself",),
    ),
    Break(
        "authorising: a review looks at buckets that there are",
        "clients/authorising.py",
        "    while review.at < review.buckets:\n        _review_next(r, c, cython.address(review))\n",
        "    while review.at <= review.buckets:\n        _review_next(r, c, cython.address(review))\n",
        (f"{RULES}::test_a_session_comes_back_to_the_rules_of_its_user",),
    ),
    Break(
        "authorising: a review looks at slots that there are",
        "clients/authorising.py",
        "    r.review_left = r.connections.size()\n",
        "    r.review_left = r.connections.size() + 1\n",
        ("tests/adversity/test_new_rules.py::test_what_is_sent_under_new_rules_is_judged_by_them",),
    ),
    Break(
        "connecting: a client whose CONNECT is decided on is not read from",
        "clients/connecting.py",
        "        c.state = DECIDING\n        c.asked = True\n",
        "        c.state = DECIDING\n",
        ("tests/conformance/test_authorisation.py",),
    ),
    Break(
        "connecting: a client whose session is looked for is not read from",
        "clients/finding.py",
        "    c.state = FINDING\n    c.asked = True\n",
        "    c.state = FINDING\n",
        ("tests/durable/test_session_requests.py::test_a_client_can_be_refused",),
    ),
    Break(
        "finding: a session is asked for once",
        "clients/connecting.py",
        "    c.identity.session_name = cython.NULL\n"
        "    data: unique_ptr[string] = unique_ptr[string](c.identity.session_data)\n"
        "    c.identity.session_data = cython.NULL\n"
        "    admit(r, c, cython.address(name), data.get(), False)\n",
        "    admit(r, c, cython.address(name), cython.NULL, True)\n",
        ("tests/durable/test_session_requests.py::test_a_second_answer_is_ignored",),
    ),
    Break(
        "connecting: a CONNECT is kept until its client is in",
        "clients/connecting.py",
        "    c.connect_packet = keep_packet(r, first, body, size)\n",
        "",
        ("tests/conformance/test_qos1.py",),
    ),
    Break(
        "connecting: a client joins its session on the reactor that owns it",
        "clients/connecting.py",
        "    if found.reactor != r.index or found.moving:\n        _send_elsewhere",
        "    if found.moving:\n        _send_elsewhere",
        ("tests/conformance/test_reactors.py::test_sessions_move",),
    ),
    Break(
        "connecting: a session has one connection",
        "clients/connecting.py",
        "        close_connection(r, found.session.connection)\n",
        "",
        ("tests/conformance/test_takeover.py::test_session_goes_on",),
    ),
    Break(
        "wishes: the will of before is gone",
        "clients/connecting.py",
        "    leave_will(r, s)\n",
        "",
        ("tests/conformance/test_will.py::test_a_new_will_takes_the_place_of_the_old",),
    ),
    Break(
        "wishes: a client takes at least one message at a time",
        "clients/wishes.py",
        "            c.send_max = connect.properties.receive_maximum\n",
        "            c.send_max = connect.properties.topic_alias_maximum\n",
        ("tests/conformance/test_flow_control.py",),
    ),
    Break(
        "placement: a client that moves is owed nothing",
        "clients/placement.py",
        "        if c.owed:  # what",
        "        if c.in_debt:  # what",
        ("tests/durable/test_moves.py::test_who_moves_has_been_told_first_what_is_kept",),
    ),
    Break(
        "placement: a session that comes belongs here",
        "clients/placement.py",
        "    c.session.reactor = target\n",
        "",
        (MOVES,),
    ),
    Break(
        "placement: a session that comes is on its way",
        "clients/placement.py",
        "    c.session.moving = True\n",
        "",
        (MOVES,),
    ),
]

ENDED: list[Break] = [
    Break(
        "closing: a free slot has no connection",
        "clients/closing.py",
        "    r.connections[c.slot] = cython.NULL\n",
        "",
        (NOT_KEPT,),
    ),
    Break(
        "closing: a handle names the connection that it is made for",
        "state/handles.py",
        "cython.cast(uint32_t, handle >> 24)",
        "cython.cast(uint32_t, handle >> 32)",
        ("tests/conformance/test_qos1.py",),
    ),
    Break(
        "closing: a connection leaves the slot that it was given",
        "turn/reactor.py",
        "        remove_connection(r, c)\n        c.touched",
        "        remove_connection(r, c)\n        remove_connection(r, c)\n        c.touched",
        ("tests/conformance/test_reactors.py::test_sessions_move",),
    ),
    Break(
        "closing: a slot has the generation of its connection",
        "clients/closing.py",
        "    c.generation = r.generations[c.slot]\n",
        "",
        (NOT_KEPT,),
    ),
    Break(
        "closing: a connection is closed once",
        "clients/closing.py",
        "    c.fd = -1\n",
        "",
        ("tests/conformance/test_takeover.py",),
    ),
    Break(
        "closing: no more connections end than began",
        "clients/closing.py",
        "    add_i64(cython.address(r.common.connection_count), 1, RELAXED)\n",
        "",
        (NOT_KEPT,),
    ),
    Break(
        "closing: of a listener no more connections end than began",
        "clients/closing.py",
        "    add_i64(cython.address(listener.connection_count), 1, RELAXED)\n",
        "",
        (NOT_KEPT,),
    ),
    Break(
        "wills: a will goes out when its client has gone",
        "clients/closing.py",
        "    store_u64(cython.cast(cython.pointer[uint64_t], cython.address(s.connection)), 0, RELEASE)\n",
        "",
        ("tests/conformance/test_will.py::test_published_when_the_connection_breaks",),
    ),
    Break(
        "wills: one that waits has the token of its promise",
        "clients/wills.py",
        "        s.will.token = own.token if own.token else next_token(r)\n"
        "        passage_message(cython.address(own), r.tally)\n"
        "        promise_will(r, s, cython.address(own))\n",
        "        passage_message(cython.address(own), r.tally)\n"
        "        promise_will(r, s, cython.address(own))\n"
        "        s.will.token = next_token(r)\n",
        ("tests/durable/test_restart_will.py::test_a_will_leaves_its_session_when_everybody_has_it",),
    ),
    Break(
        "wills: a message that is delayed has a session of its own",
        "clients/wills.py",
        "    digits: uint64_t = next_id(r).clock\n",
        "    digits: uint64_t = 7\n",
        ("tests/conformance/test_delayed.py::test_a_delayed_message_comes_when_it_is_due_and_not_before",),
    ),
]

SERVED: list[Break] = [
    Break(
        "commit results: no more answer than were asked",
        "queues/promises.py",
        "        promise.answers = p.answers\n",
        "",
        ("tests/durable/test_failure.py::test_publishers_on_another_reactor_are_told",),
    ),
    Break(
        "commit results: what is kept is owed",
        "queues/promises.py",
        "        c.owed += 1\n",
        "",
        (f"{ACKNOWLEDGED}::test_puback_and_pubrec",),
    ),
    Break(
        "commit results: a client that is owed too much is paused",
        "queues/promises.py",
        "            c.pause_count += 1\n",
        "",
        (f"{ACKNOWLEDGED}::test_a_publisher_that_is_owed_receive_max_is_not_read_from",),
    ),
    Break(
        "commit results: a publisher knows how many of its offers are open",
        "queues/promises.py",
        "            s.offers += 1\n",
        "",
        ("tests/durable/test_moves.py::test_who_is_offered_a_message_stays_until_it_has_it",),
    ),
    Break(
        "commit results: what is committed never goes back",
        "clients/commit_results.py",
        "        r.committed = section.number\n",
        "        r.committed = section.number + 1\n",
        (ACKNOWLEDGED,),
    ),
    Break(
        "publishing: one message of a client waits for a decision",
        "clients/publishing.py",
        "    c.pending_packet = cython.NULL\n",
        "",
        ("tests/conformance/test_authorisation.py::test_identifier_is_free_after_refusal",),
    ),
    Break(
        "publishing: a client publishes on the reactor of its session",
        "clients/connecting.py",
        "    store_u64(\n"
        "        cython.cast(cython.pointer[uint64_t], cython.address(s.connection)),"
        " cython.cast(uint64_t, c), RELEASE\n"
        "    )\n",
        "",
        ("tests/conformance/test_flow_control.py::test_qos_1_does_not_count_once_acknowledged",),
    ),
    Break(
        "replaying: what is reported was delivered",
        "turn/reactor.py",
        "    if c.delivered and not pending_output(c)",
        "    if not pending_output(c)",
        ("tests/conformance/test_qos1.py",),
    ),
    Break(
        "holding: the first that is held waits for plugins",
        "clients/publishing.py",
        "    if asks or c.held != cython.NULL:\n",
        "    if publish.qos or asks or c.held != cython.NULL:\n",
        (f"{HELD}::test_only_messages_on_a_filter_go_up_and_all_others_pass",),
    ),
    Break(
        "holding: what goes on need not wait any more",
        "clients/releasing.py",
        "    while not c.doomed and has_answered(c.held):\n",
        "    while not c.doomed and not c.held.messages.empty():\n",
        (f"{HELD}::test_an_alias_means_what_it_meant_when_the_message_came",),
    ),
    Break(
        "holding: a client that is read again was paused",
        "link/backpressure.py",
        "        c.held.paused = True\n        c.pause_count += 1\n",
        "        c.held.paused = True\n",
        (f"{HELD}::test_what_is_no_publish_waits_for_what_was_sent_before",),
    ),
    Break(
        "replaying: the next piece comes when the last one is out",
        "clients/replaying.py",
        "    c.delivered = False\n",
        "",
        ("tests/unit/test_replays.py",),
    ),
    Break(
        "roll call: a bucket is one of the table",
        "clients/roll_call.py",
        "        roster.buckets = r.sessions.bucket_count()\n",
        "        roster.buckets = r.sessions.bucket_count() + 1\n",
        (LISTED,),
    ),
    Break(
        "roll call: an answer has no more clients than were asked for",
        "clients/roll_call.py",
        "if roster.rows.size() >= roster.rows_max or _is_over(roster):",
        "if _is_over(roster):",
        (LISTED,),
    ),
    Break(
        "subscribing: one SUBSCRIBE of a client waits for a decision",
        "turn/reading.py",
        "not (c.doomed or c.asked or c.leaving or c.pause_count):",
        "not (c.doomed or c.leaving or c.pause_count):",
        ("tests/conformance/test_authorisation.py::test_subscriptions_wait_for_their_decisions",),
    ),
    Break(
        "subscribing: of each filter it is known what it wants",
        "clients/subscribing.py",
        "        wanted.push_back(retained)\n",
        "        if retained:\n            wanted.push_back(retained)\n",
        ("tests/conformance/test_retained.py",),
    ),
]

PLANTED: list[Break] = [*LET_IN, *ENDED, *SERVED]
