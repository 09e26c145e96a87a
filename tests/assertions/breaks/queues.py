"""Breaks of what engine/queues relies on."""

from __future__ import annotations

from assertions.planted import Break

OFFERS = "tests/durable/test_moves.py::test_who_is_offered_a_message_stays_until_it_has_it"
HANDED_BACK = "tests/durable/test_shared.py::test_very_many_held_go_back_whole_and_in_order"
WAITED = "tests/durable/test_shared.py::test_what_waited_for_a_member_goes_to_one_that_comes"
WINDOWS = "tests/durable/test_windows.py"
CEILING = "tests/adversity/test_memory_ceiling.py::test_publishers_are_held_and_go_on"
STEP = "tests/durable/test_clock.py::test_a_step_is_a_line_with_the_date"
RETAINED = "tests/conformance/test_retained.py::test_more_than_an_outbox_holds_come_as_they_are_acknowledged"

OUTBOX: list[Break] = [
    Break(
        "outside rows: what has come is above the edge",
        "queues/outside_rows.py",
        "        lower_edge(s, cython.address(lowest))\n",
        "",
        (
            "tests/durable/test_outside_rows.py::test_a_row_that_is_older_than_what_was_read_comes_all_the_same",
        ),
    ),
    Break(
        "clearing: the client is asked for more when it has answered",
        "queues/clearing.py",
        "        k.cleared = k.asked\n        k.tries = 0\n",
        "        k.tries = 0\n",
        ("tests/durable/test_clearing.py::test_a_message_goes_when_the_client_has_released_its_identifier",),
    ),
    Break(
        "outbox: head <= next <= tail",
        "queues/outbox.py",
        "    if box.next < box.head:\n        box.next = box.head\n",
        "    box.next = box.head - 1\n",
        ("tests/conformance/test_qos1.py",),
    ),
    Break(
        "outbox: entries are at its places",
        "queues/outbox.py",
        "    else:\n        box.inflight -= 1\n",
        "",
        ("tests/conformance/test_qos1.py",),
    ),
    Break(
        "outbox: bytes are those of the messages held",
        "queues/outbox.py",
        "        box.bytes -= size\n",
        "        box.bytes -= 2 * size\n",
        ("tests/adversity/test_queue_limits.py::test_what_a_session_still_had_when_it_ended_is_counted",),
    ),
    Break(
        "outbox: nothing is in flight where an entry goes before the head",
        "queues/handbacks.py",
        "prepend_entry(cython.address(shard.outbox), r.now_ms, r.tally)",
        "prepend_entry(box, r.now_ms, r.tally)",
        (WAITED,),
    ),
    Break(
        "outbox: a place is found by its packet identifier",
        "queues/outbox.py",
        "    return box.head + packet_id - first\n",
        "    return box.head + packet_id - first + 1\n",
        ("tests/conformance/test_qos1.py",),
    ),
    Break(
        "outbox: an entry is forgotten once",
        "clients/publishing.py",
        "    forget_entry(cython.address(s.outbox), entry, r.tally)\n    if replay:",
        "    forget_entry(cython.address(s.outbox), entry, r.tally)\n"
        "    forget_entry(cython.address(s.outbox), entry, r.tally)\n"
        "    if replay:",
        ("tests/conformance/test_qos1.py",),
    ),
    Break(
        "outbox: as many entries wait as are counted",
        "queues/outbox.py",
        "            entry.was_sent = True\n            box.waiting += 1\n",
        "            entry.was_sent = True\n",
        ("tests/conformance/test_qos1.py::test_sent_again_after_reconnection",),
    ),
    Break(
        "outbox: as many entries are in flight as are counted",
        "queues/delivery.py",
        "    box.inflight += 1\n    box.next += 1\n",
        "    box.next += 1\n",
        ("tests/conformance/test_qos1.py",),
    ),
    Break(
        "outbox: bytes are the sum over its entries",
        "queues/delivery.py",
        "    box.bytes += message_bytes(message)\n",
        "    box.bytes += 2 * message_bytes(message)\n",
        ("tests/conformance/test_qos1.py",),
    ),
]

DELIVERY: list[Break] = [
    Break(
        "delivery: a message goes to a session of this reactor",
        "queues/cache.py",
        "    group.here = local_group(r, common.id)\n",
        "    group.here = local_group(r.common.reactors[0], common.id)\n",
        ("tests/conformance/test_reactors.py::test_shared_group_across_reactors",),
    ),
    Break(
        "delivery: what is sent next is the entry at next",
        "queues/delivery.py",
        "not c.doomed and box.next + 1 == box.tail:",
        "not c.doomed and box.next < box.tail:",
        ("tests/conformance/test_flow_control.py",),
    ),
    Break(
        "delivery: no more is in flight than the client takes",
        "queues/delivery.py",
        "    if box.inflight >= c.send_max or",
        "    if box.inflight > c.send_max or",
        ("tests/conformance/test_flow_control.py",),
    ),
    Break(
        "delivery: packet identifiers in flight never collide",
        "queues/delivery.py",
        "or box.next - box.head >= 65535:",
        "or box.next - box.head > 65535:",
        ("tests/conformance/test_qos1.py::test_identifiers_wrap_around",),
    ),
    Break(
        "queueing: rows that are only in the store are above the edge",
        "queues/queueing.py",
        "        lower_edge(s, cython.address(entry.message.id))\n        note_spilled(s, entry.message)\n",
        "        note_spilled(s, entry.message)\n",
        (WINDOWS,),
    ),
    Break(
        "queueing: a window that comes was asked for",
        "queues/queueing.py",
        "    q.reading = True\n",
        "",
        (WINDOWS,),
    ),
    Break(
        "queueing: the rows of a window are above the edge, in order",
        "queues/queueing.py",
        "        and q.waiting == 0\n",
        "",
        (f"{WINDOWS}::test_what_comes_while_the_client_drains_its_queue",),
    ),
    Break(
        "received identifiers: only a stored session has second bits",
        "clients/publishing.py",
        "if c.session.stored != cython.NULL and (p.kept or p.answers)",
        "if (p.kept or p.answers)",
        ("tests/durable/test_acknowledgement.py::test_puback_and_pubrec",),
    ),
    Break(
        "received identifiers: those that are set are counted",
        "queues/received_identifiers.py",
        "    s.received_count += 1\n",
        "",
        ("tests/conformance/test_qos2.py",),
    ),
]

SESSIONS: list[Break] = [
    Break(
        "sessions: one ends on the reactor that owns it",
        "clients/connecting.py",
        "    if found.session == cython.NULL or found.reactor != r.index or found.moving:\n"
        "        return True\n"
        "    if found.session.handed",
        "    if found.session == cython.NULL or found.moving:\n"
        "        return True\n"
        "    if found.session.handed",
        ("tests/conformance/test_reactors.py::test_a_clean_start_ends_a_session_wherever_it_is",),
    ),
    Break(
        "sessions: one that ends is offline",
        "clients/closing.py",
        "    store_u64(cython.cast(cython.pointer[uint64_t], cython.address(s.connection)), 0, RELEASE)\n",
        "",
        ("tests/conformance/test_session.py::test_clean_session_is_not_kept",),
    ),
    Break(
        "sessions: no more end than were made",
        "queues/sessions.py",
        "    add_i64(cython.address(r.common.session_count), not delayed, RELAXED)\n",
        "",
        ("tests/conformance/test_session.py::test_clean_session_is_not_kept",),
    ),
    Break(
        "sessions: one that is freed is in no index",
        "queues/sessions.py",
        "    if _withdraw(r, s, _WITHDRAWN_AT_ONCE) == 0:\n",
        "    if _withdraw(r, s, _WITHDRAWN_AT_ONCE) == _WITHDRAWN_AT_ONCE:\n",
        ("tests/conformance/test_session.py::test_one_with_many_subscriptions_ends",),
    ),
    Break(
        "dating: a bucket is one of the table",
        "queues/dating.py",
        "    while left and r.dating_at < r.dating_buckets:\n",
        "    while left and r.dating_at <= r.dating_buckets:\n",
        (STEP,),
    ),
    Break(
        "dating: steps of the clock are counted upwards",
        "queues/dating.py",
        "add_i64(cython.address(common.clock_steps), 1, RELAXED)",
        "add_i64(cython.address(common.clock_steps), -1, RELAXED)",
        (STEP,),
    ),
    Break(
        "memory ceiling: a publisher in the list of those it stopped says so",
        "queues/memory_ceiling.py",
        "        c.overloaded = True\n",
        "",
        (CEILING,),
    ),
    Break(
        "memory ceiling: a publisher that it stopped is paused",
        "queues/memory_ceiling.py",
        "        pause_feeder(r, handle_of(r, c))\n",
        "",
        (CEILING,),
    ),
    Break(
        "memory ceiling: no more are looked at than wait",
        "queues/memory_ceiling.py",
        "        left -= 1\n        r.overloaded_left -= 1\n",
        "        left -= 1\n",
        (CEILING,),
    ),
]

GROUPS: list[Break] = [
    Break(
        "groups: one that is forgotten has no members",
        "queues/groups.py",
        "    _go(member)\n    r.tally",
        "    r.tally",
        ("tests/conformance/test_shared_subscriptions.py::test_the_last_member_unsubscribes",),
    ),
    Break(
        "groups: no more are ready than are there",
        "queues/groups.py",
        "    group.members.push_back(member)\n"
        "    _exchange(group, member.at, group.ready)\n"
        "    group.ready += 1\n",
        "    group.members.push_back(member)\n"
        "    _exchange(group, member.at, group.ready)\n"
        "    group.ready += 2\n",
        ("tests/conformance/test_shared_subscriptions.py",),
    ),
    Break(
        "groups: whoever is among the members is there",
        "queues/groups.py",
        "    group.members[at] = member\n    member.at = at\n",
        "    group.members[at] = member\n",
        ("tests/conformance/test_shared_subscriptions.py",),
    ),
    Break(
        "groups: a member is at its place",
        "queues/groups.py",
        "    _place(group, group.members[b], a)\n",
        "    group.members[a] = group.members[b]\n",
        ("tests/conformance/test_shared_subscriptions.py",),
    ),
    Break(
        "groups: those below ready are those not found full",
        "queues/groups.py",
        "    member.full = False\n",
        "",
        (WAITED,),
    ),
    Break(
        "groups: one found full is in its session's list",
        "queues/groups.py",
        "    full.full.push_back(member)\n",
        "",
        (WAITED,),
    ),
    Break(
        "shards: one serves the members of its own group",
        "queues/shards.py",
        "    shard.group = group\n",
        "    shard.group = number\n",
        (WAITED,),
    ),
    Break(
        "shards: one is served by the reactor that it is on",
        "queues/shards.py",
        "    shard.reactor = r.index\n",
        "",
        (WAITED,),
    ),
    Break(
        "shards: a group in the list of those that are due says so",
        "queues/groups.py",
        "        group.due = True\n",
        "",
        (WAITED,),
    ),
    Break(
        "handbacks: of what an ended session held nothing stays",
        "queues/handbacks.py",
        "        remove_row(r, cython.NULL, entry)\n    forget_entry(box, entry, r.tally)\n",
        "        remove_row(r, cython.NULL, entry)\n",
        ("tests/conformance/test_session.py::test_clean_start_forgets_all",),
    ),
    Break(
        "handbacks: a group knows how many it waits for",
        "queues/handbacks.py",
        "        dereference(item).second.group.handbacks += 1\n",
        "",
        (HANDED_BACK,),
    ),
    Break(
        "handbacks: a session knows the one that is under way",
        "queues/handbacks.py",
        "    s.memberships.handback = rest\n",
        "",
        (HANDED_BACK,),
    ),
]

PROMISED: list[Break] = [
    Break(
        "offers: what is offered has an id",
        "clients/publishing.py",
        "    if publish.retain or (r.common.durable and publish.qos):\n",
        "    if publish.retain or (r.common.durable and publish.qos == 1):\n",
        (OFFERS,),
    ),
    Break(
        "offers: one that is open holds its message",
        "queues/offers.py",
        "        offer.message = message\n",
        "",
        (OFFERS,),
    ),
    Break(
        "agreement: what is said of each taker has come whole",
        "queues/offers.py",
        "    takers.push_back(1 if taker.retain else 0)\n",
        "",
        (OFFERS,),
    ),
    Break(
        "agreement: what is recorded was answered by all",
        "queues/agreement.py",
        "        if promise.answers:\n            return\n",
        "",
        (f"{WINDOWS}::test_qos_2_comes_once_from_a_reactor_that_is_busy",),
    ),
    Break(
        "agreement: an offer is recorded once",
        "queues/agreement.py",
        "        s.stored.unrecorded = promise.next\n",
        "",
        (OFFERS,),
    ),
    Break(
        "agreement: a queue knows how many of its rows are offered",
        "queues/offers.py",
        "    s.stored.offered += 1\n",
        "",
        ("tests/durable/test_acknowledgement.py",),
    ),
    Break(
        "promises: they are in the order of their sections",
        "queues/promises.py",
        "    promise.packet = owner.release()\n    r.promises.push_back(promise)\n",
        "    promise.packet = owner.release()\n    r.promises.push_front(promise)\n",
        ("tests/durable/test_acknowledgement.py::test_what_waits_for_several_commits_comes_in_order",),
    ),
    Break(
        "promises: a token names another reactor",
        "queues/promises.py",
        "    promise.number = token\n",
        "    promise.number = p.id.clock\n",
        (OFFERS, "tests/durable/test_order_of_acknowledgements.py"),
    ),
]

ROUTED: list[Break] = [
    Break(
        "retaining: what is retained has an id",
        "clients/publishing.py",
        "    if publish.retain or (r.common.durable and publish.qos):\n",
        "    if r.common.durable and publish.qos:\n",
        ("tests/conformance/test_retained.py",),
    ),
    Break(
        "retaining: one reactor sweeps for all",
        "queues/retaining.py",
        "    if r.index or (r.sweep == cython.NULL",
        "    if (r.sweep == cython.NULL",
        ("tests/conformance/test_reactors.py",),
    ),
    Break(
        "routing: the shares of a group sum up to their count",
        "queues/cache.py",
        "            group.elsewhere_count += share.members\n",
        "            group.elsewhere_count += share.members + common.online[r.index]\n",
        ("tests/conformance/test_reactors.py::test_shared_group_across_reactors",),
    ),
    Break(
        "routing: a reactor mails nothing to itself",
        "queues/cache.py",
        "            _add_receiver(entry, subscription, cython.address(identifiers))\n        else:\n",
        "            _add_receiver(entry, subscription, cython.address(identifiers))\n"
        "        if subscription.reactor != STREAM_REACTOR:\n",
        ("tests/conformance/test_qos1.py",),
    ),
    Break(
        "cache: no set overflows when the table grows",
        "queues/cache.py",
        "    sets: cython.size_t = larger.size() // CACHE_WAYS\n",
        "    sets: cython.size_t = larger.size() // CACHE_WAYS // CACHE_WAYS\n",
        (RETAINED,),
    ),
    Break(
        "cache: the sessions of an entry are this reactor's",
        "queues/cache.py",
        "        elif subscription.reactor == r.index:\n",
        "        elif subscription.reactor <= r.index:\n",
        ("tests/conformance/test_reactors.py::test_messages_cross",),
    ),
    Break(
        "cache: each subscription identifier has a place",
        "queues/cache.py",
        "        receiver.ids_count += 1\n        receiver.own_ids_count += own\n",
        "        receiver.own_ids_count += own\n",
        ("tests/conformance/test_subscribe_options.py",),
    ),
    Break(
        "cache: the weight is that of all entries",
        "queues/cache.py",
        "    r.cache.weight += _weigh(entry)\n",
        "",
        ("tests/adversity/test_hard_lookups.py::test_a_subscription_counts_from_the_next_message_on",),
    ),
    Break(
        "cache: there are as many topics as are counted",
        "queues/cache.py",
        "            cache.count += 1\n            return chosen + way\n",
        "            return chosen + way\n",
        ("tests/conformance/test_qos1.py",),
    ),
    Break(
        "backlogs: a session's table of them is not empty",
        "queues/backlogs.py",
        "    free_backlog(s)\n    return False\n",
        "    return True\n",
        (RETAINED,),
    ),
    Break(
        "backlogs: who is walked for waits",
        "queues/backlogs.py",
        "    s.backlogs.filter = key\n",
        "",
        (RETAINED,),
    ),
    Break(
        "backlogs: a connection in the list says so",
        "queues/backlogs.py",
        "        c.backlogged = True\n",
        "",
        (RETAINED,),
    ),
]

REPLAYED: list[Break] = [
    Break(
        "replayed: a session has one replay of a filter",
        "queues/replayed.py",
        "    if replay == cython.NULL:\n        if s.replays != cython.NULL and",
        "    if replay == cython.NULL or replay.epoch == epoch:\n        if s.replays != cython.NULL and",
        ("tests/unit/test_replays.py::test_who_subscribes_again_at_qos_1_goes_on",),
    ),
    Break(
        "replayed: what is acknowledged stays so",
        "queues/replayed.py",
        "        replay.end = last.offset\n",
        "        replay.end = 0\n",
        ("tests/durable/test_replays.py",),
    ),
]

FORWARDED: list[Break] = [
    Break(
        "forwarding: as many bytes are under way as are written",
        "queues/forwarding.py",
        "        into.append(cython.cast(cython.p_char, p.payload.data), p.payload.size)\n",
        "        pass\n",
        ("tests/adversity/test_nodes.py::test_properties_and_expiry_survive",),
    ),
    Break(
        "forwarding: it is known since when publishers wait for a node",
        "queues/forwarding.py",
        "            side.since_ms = r.now_ms\n",
        "            pass\n",
        ("tests/adversity/test_nodes.py::test_publishers_wait_for_a_node_before_anything_is_lost",),
    ),
    Break(
        "forwarding: the shares of nodes sum up to their count",
        "queues/cache.py",
        "            group.nodes_count += share.members\n",
        "            group.nodes_count += share.members + 4\n",
        ("tests/adversity/test_node_groups.py::test_each_message_goes_to_one_member_of_any_node",),
    ),
]

PLANTED: list[Break] = [
    *OUTBOX,
    *DELIVERY,
    *SESSIONS,
    *GROUPS,
    *PROMISED,
    *ROUTED,
    *REPLAYED,
    *FORWARDED,
]
