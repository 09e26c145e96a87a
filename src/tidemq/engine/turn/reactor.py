"""A reactor's turns: wait, take the mail, read, route, then write each touched connection once and hand over
the mail.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.tidemq.engine.base.allocation import obtain
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds, set_reactor
from cython.cimports.tidemq.engine.base.clock import clock_ms, clock_ns
from cython.cimports.tidemq.engine.base.counters import (
    C_ENDED_CONNECT_LATE,
    C_ENDED_OUTPUT_STALLED,
    C_ENDED_PACKET_LATE,
    C_TURNS,
    COUNTER_COUNT,
    LIVE_BUFFERS,
    MEMORY_BUFFERS,
)
from cython.cimports.tidemq.engine.base.event import EVENT_STOPPED
from cython.cimports.tidemq.engine.base.histograms import (
    H_PUBLISH_QOS_1,
    H_PUBLISH_QOS_2,
    H_TURN,
    observe,
)
from cython.cimports.tidemq.engine.base.locks import lock, unlock
from cython.cimports.tidemq.engine.base.steps import allow_steps, begin_turn, count_steps, end_turn
from cython.cimports.tidemq.engine.base.system import (
    EFD_CLOEXEC,
    EFD_NONBLOCK,
    EPOLL_CLOEXEC,
    EPOLLERR,
    EPOLLHUP,
    EPOLLIN,
    EPOLLOUT,
    RELAXED,
    SEQ_CST,
    SIOCOUTQ,
    close,
    epoll_create1,
    epoll_event,
    epoll_wait,
    eventfd,
    getrandom,
    ioctl,
    load_int,
    pthread_mutex_destroy,
    pthread_mutex_init,
    read,
    store_i64,
    store_int,
)
from cython.cimports.tidemq.engine.clients.authorising import continue_review
from cython.cimports.tidemq.engine.clients.closing import (
    close_connection,
    remove_connection,
    session_due,
    update_interest,
)
from cython.cimports.tidemq.engine.clients.commit_results import KEPT_A_TURN, keep_promises
from cython.cimports.tidemq.engine.clients.leaving import continue_releases
from cython.cimports.tidemq.engine.clients.placement import work_out_load
from cython.cimports.tidemq.engine.clients.releasing import release_held
from cython.cimports.tidemq.engine.clients.replaying import report_delivered
from cython.cimports.tidemq.engine.index.rules import release_policy
from cython.cimports.tidemq.engine.index.topic_rules import release_topic_rules
from cython.cimports.tidemq.engine.journal.journal import free_section, free_spent, hand_over, is_late
from cython.cimports.tidemq.engine.link.backpressure import (
    check_flooding,
    check_strained,
    continue_released,
    continue_strained,
    free_released,
    is_waited_for,
    relieve,
)
from cython.cimports.tidemq.engine.link.drops import check_drops, report_drops
from cython.cimports.tidemq.engine.link.lingering import drain_lingering, end_lingering, is_lingering
from cython.cimports.tidemq.engine.link.mail import post_outgoing, take_inbox
from cython.cimports.tidemq.engine.link.output import doom, flush_output, pending_output, touch
from cython.cimports.tidemq.engine.link.polling import watch
from cython.cimports.tidemq.engine.link.rates import hold_is_over
from cython.cimports.tidemq.engine.link.reports import new_event, post_event
from cython.cimports.tidemq.engine.link.timers import take_timer, time_connection
from cython.cimports.tidemq.engine.link.tracing import is_traced, note_flushed, trace_out
from cython.cimports.tidemq.engine.link.wrapping import check_transport, has_ended
from cython.cimports.tidemq.engine.queues.arrivals import continue_arrivals, free_arrivals
from cython.cimports.tidemq.engine.queues.backlogs import continue_backlogs
from cython.cimports.tidemq.engine.queues.cache import free_cache
from cython.cimports.tidemq.engine.queues.clearing import clearing_due_ms
from cython.cimports.tidemq.engine.queues.dating import continue_dating, follow_clock
from cython.cimports.tidemq.engine.queues.delivery import send_waiting
from cython.cimports.tidemq.engine.queues.doubles import doubles_due
from cython.cimports.tidemq.engine.queues.forwarding import hand_to_nodes
from cython.cimports.tidemq.engine.queues.groups import free_groups
from cython.cimports.tidemq.engine.queues.handbacks import HANDBACK_SLICE, continue_handbacks, end_handbacks
from cython.cimports.tidemq.engine.queues.memory_ceiling import check_memory, continue_overloaded
from cython.cimports.tidemq.engine.queues.offers import free_offers
from cython.cimports.tidemq.engine.queues.outbox import entry_at, ms_since, rewind_outbox
from cython.cimports.tidemq.engine.queues.promises import free_promises
from cython.cimports.tidemq.engine.queues.queueing import MARK_MS, mark_sent
from cython.cimports.tidemq.engine.queues.retaining import end_sweep, sweep_retained
from cython.cimports.tidemq.engine.queues.sessions import continue_ending
from cython.cimports.tidemq.engine.queues.shards import (
    GIVE_A_TURN,
    continue_groups,
    look_at_room,
    tend_shards,
)
from cython.cimports.tidemq.engine.state.client import CONNECTED, OUTPUT_BLOCK, Connection
from cython.cimports.tidemq.engine.state.handles import connection_of, handle_of
from cython.cimports.tidemq.engine.state.mail import (
    TIMER_CONNECTION,
    TIMER_DOUBLES,
    TIMER_LISTENING,
    TIMER_THROTTLED,
    Timer,
)
from cython.cimports.tidemq.engine.state.nodes import NODES_MAX
from cython.cimports.tidemq.engine.state.queue import RELEASED, SENT, Entry, Outbox
from cython.cimports.tidemq.engine.state.reactor import Reactor
from cython.cimports.tidemq.engine.state.work import begin_work, is_enough
from cython.cimports.tidemq.engine.turn.arriving import continue_nodes
from cython.cimports.tidemq.engine.turn.departing import post_departing
from cython.cimports.tidemq.engine.turn.gathering import begin_gathering, gather, note_turn
from cython.cimports.tidemq.engine.turn.listening import accept_connections, is_listening, watch_listening
from cython.cimports.tidemq.engine.turn.postman import handle_mail
from cython.cimports.tidemq.engine.turn.reading import begins_whole, parse_kept, read_connection
from cython.cimports.tidemq.engine.turn.scheduling import ask_for_short_slices
from cython.cimports.tidemq.net.buffer import release
from cython.cimports.tidemq.wire.protocol import (
    FAULT_CONNECT_TIMEOUT,
    FAULT_KEEP_ALIVE,
    FAULT_OUTPUT_STALLED,
    FAULT_PACKET_LATE,
    RC_KEEP_ALIVE_TIMEOUT,
    RC_PROTOCOL_ERROR,
    RC_SERVER_SHUTTING_DOWN,
    fault_reason,
)

_EVENTS_MAX = cython.declare(cython.int, 512)  # of epoll in one turn
_TICK_MS = cython.declare(int64_t, 100)  # between two looks at what is slow, paused or due
_ENDED_MAX = cython.declare(cython.size_t, 512)  # subscriptions of sessions that have ended, in one turn
_TIMERS_MAX = cython.declare(cython.int, 1024)  # in one turn; a session that ends counts its subscriptions
_IDLE_MS = cython.declare(int64_t, 1000)  # the longest wait when there is nothing to look at
_READ_CAPACITY = cython.declare(uint32_t, 262144)  # bytes of one read, and of the one buffer for it


def new_reactor(common, index):
    """A reactor that does not run yet."""
    owner: unique_ptr[Reactor] = make_unique[Reactor]()
    r: cython.pointer[Reactor] = owner.release()
    r.handback_left = cython.cast(cython.uint, 0xFFFFFFFF)  # until it runs
    r.publishers_left = r.others_left = KEPT_A_TURN
    r.index = index
    r.common = common
    r.epoll = epoll_create1(EPOLL_CLOEXEC)
    r.wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
    watch(r, r.wake, 0, 0)
    r.read_capacity = _READ_CAPACITY
    r.read_buffer = cython.cast(cython.pointer[uint8_t], obtain(_READ_CAPACITY))
    r.wrapped_buffer = cython.cast(cython.pointer[uint8_t], obtain(_READ_CAPACITY))
    r.heads.resize(16)
    r.nodes.resize(NODES_MAX)
    getrandom(cython.address(r.cache.seed), 8, 0)
    pthread_mutex_init(cython.address(r.inbox_lock), cython.NULL)
    r.now_ns = clock_ns()
    r.now_ms = r.now_ns // 1000000
    return r


def free_reactor(r):
    """Frees a reactor whose thread has ended and whose connections and sessions are gone."""
    index: cython.size_t
    empty: cython.bint = r.free_slots.size() == r.connections.size()
    holds(empty, b"reactor: one that is freed has no connections")
    for index in range(r.spare_blocks.size()):
        free(r.spare_blocks[index])
    r.tally[LIVE_BUFFERS] -= r.spare_blocks.size()
    r.tally[MEMORY_BUFFERS] -= cython.cast(int64_t, r.spare_blocks.size()) * OUTPUT_BLOCK
    r.spare_blocks.clear()
    end_lingering(r, True)
    free_released(r)
    end_handbacks(r)
    free_groups(r)
    free_arrivals(r)
    free_promises(r)
    free_offers(r)
    while free_spent(r):
        pass
    if r.section != cython.NULL:
        free_section(r, r.section)
    free_cache(r)
    release_policy(r.policy, r.tally)
    r.policy = cython.NULL
    release_topic_rules(r.topic_rules, r.tally)
    r.topic_rules = cython.NULL
    free(r.read_buffer)
    free(r.wrapped_buffer)
    release(cython.address(r.spare_output))
    close(r.epoll)
    close(r.wake)
    pthread_mutex_destroy(cython.address(r.inbox_lock))
    publish_tally(r)


def _handle_event(r, event):
    key: uint64_t = event.data.u64
    if key == 0:
        count: uint64_t
        read(r.wake, cython.address(count), 8)
        return
    if is_listening(key):
        if not r.stopping:
            accept_connections(r, key)
        return
    if is_lingering(key):
        drain_lingering(r, key)
        return
    c: cython.pointer[Connection] = connection_of(r, key)
    if c == cython.NULL:
        return
    if event.events & EPOLLOUT:
        c.output_ms = r.now_ms
        c.unsent = 0x7FFFFFFF
    if event.events & EPOLLIN:
        read_connection(r, c)
    elif event.events & (EPOLLHUP | EPOLLERR):
        doom(r, c, 0, 0)
    if event.events & ~EPOLLIN:
        touch(r, c)


def _resend_overdue(r, c):
    """For MQTT 3.1: what was not acknowledged in time goes out again, with DUP (3.1 section 4.2)."""
    box: cython.pointer[Outbox] = cython.address(c.session.outbox)
    if box.head == box.next:
        return
    entry: cython.pointer[Entry] = entry_at(box, box.head)
    late: cython.bint = (entry.state == SENT or entry.state == RELEASED) and ms_since(
        entry.since_ms, r.now_ms
    ) >= cython.cast(int64_t, r.common.limits.ack_timeout_s) * 1000
    if late:
        rewind_outbox(box)
        send_waiting(r, c.session)


def _check_connect(r, c):
    """Before CONNACK: one deadline from accept on, whatever comes meanwhile, and another for each step of an
    authentication. While the control plane decides it is not the client who is late; nor where it waits for a
    bucket, which others may have emptied, but for as long again at most.
    """
    if c.deadline_ms > r.now_ms:
        time_connection(r, c, c.deadline_ms)
    elif c.asked or (c.throttled and c.deadline_ms + r.common.limits.connect_timeout_ms > r.now_ms):
        time_connection(r, c, r.now_ms + _IDLE_MS)
    else:
        r.tally[C_ENDED_CONNECT_LATE] += 1
        doom(r, c, RC_PROTOCOL_ERROR, FAULT_CONNECT_TIMEOUT)


def _check_flow(r, c):
    """Ends a connection whose packet does not become whole, or whose output nobody takes. Returns when to
    look again; 0: there is nothing to look after.
    """
    limit_ms: int64_t = r.common.limits.packet_ms_max
    next_ms: int64_t = 0
    if limit_ms and c.input != cython.NULL:
        if c.asked or c.pause_count or c.stalled or begins_whole(r, c):
            c.packet_ms = r.now_ms  # it is we who do not read
        next_ms = c.packet_ms + limit_ms
        if next_ms <= r.now_ms:
            r.tally[C_ENDED_PACKET_LATE] += 1
            doom(r, c, fault_reason(FAULT_PACKET_LATE), FAULT_PACKET_LATE)
            return 0
    limit_ms = r.common.limits.output_stalled_ms_max
    if limit_ms and c.interest & EPOLLOUT:
        # an event comes only when much has room again: who reads slowly shows in what the socket holds
        unsent: cython.int = c.unsent
        ioctl(c.fd, SIOCOUTQ, cython.address(unsent))
        if unsent < c.unsent:
            c.output_ms = r.now_ms
        c.unsent = unsent
        if c.output_ms + limit_ms <= r.now_ms:
            r.tally[C_ENDED_OUTPUT_STALLED] += 1
            doom(r, c, fault_reason(FAULT_OUTPUT_STALLED), FAULT_OUTPUT_STALLED)
            return 0
        if next_ms == 0 or r.now_ms + limit_ms // 2 < next_ms:
            next_ms = r.now_ms + limit_ms // 2
    return next_ms


def _connection_due(r, c, due_ms):
    """A connection's timer: no CONNECT in time, nothing heard for too long, or something to send again."""
    if c.timer_ms != due_ms:
        return
    c.timer_ms = 0
    if c.doomed:
        return
    if c.state != CONNECTED:
        _check_connect(r, c)
        return
    next_ms: int64_t = _check_flow(r, c)
    if c.doomed:
        return
    if c.keep_alive_ms:
        if c.asked or c.pause_count:
            c.last_read_ms = r.now_ms  # it is we who do not read
        silent_ms: int64_t = c.last_read_ms + c.keep_alive_ms
        if silent_ms <= r.now_ms:
            doom(r, c, RC_KEEP_ALIVE_TIMEOUT, FAULT_KEEP_ALIVE)  # [MQTT-3.1.2-22]
            return
        if next_ms == 0 or silent_ms < next_ms:
            next_ms = silent_ms
    cleared_ms: int64_t = clearing_due_ms(c.session)
    if cleared_ms and cleared_ms <= r.now_ms:
        send_waiting(r, c.session)
    elif cleared_ms and (next_ms == 0 or cleared_ms < next_ms):
        next_ms = cleared_ms
    if c.version == 3 and r.common.limits.ack_timeout_s:
        _resend_overdue(r, c)
        again_ms: int64_t = r.now_ms + cython.cast(int64_t, r.common.limits.ack_timeout_s) * 1000
        if next_ms == 0 or again_ms < next_ms:
            next_ms = again_ms
    if next_ms:
        time_connection(r, c, next_ms)


def _run_timers(r):
    left: cython.int = _TIMERS_MAX
    begin_work(r)
    while left > 0 and r.timers.size() and r.timers[0].due_ms <= r.now_ms and not is_enough(r):
        count_steps(1)
        left -= 1
        timer: Timer = take_timer(r)
        if timer.kind == TIMER_CONNECTION:
            c: cython.pointer[Connection] = connection_of(r, timer.key)
            if c != cython.NULL:
                _connection_due(r, c, timer.due_ms)
        elif timer.kind == TIMER_THROTTLED:
            hold_is_over(r, timer.key)
        elif timer.kind == TIMER_LISTENING:
            watch_listening(r, timer.key)
        elif timer.kind == TIMER_DOUBLES:
            left -= doubles_due(r, timer.key)
        else:
            left -= session_due(r, timer.key, timer.due_ms)
    if r.now_ms - r.tick_ms >= _TICK_MS:
        r.tick_ms = r.now_ms
        check_strained(r)
        check_memory(r)
        check_drops(r)
        tend_shards(r)
        sweep_retained(r)
        end_lingering(r, False)


def _run_resumed(r):
    """Connections that may be read again: first what was kept of them."""
    count: cython.size_t = min(r.resumed.size(), cython.cast(cython.size_t, _EVENTS_MAX))
    index: cython.size_t
    for index in range(count):
        count_steps(1)
        c: cython.pointer[Connection] = connection_of(r, r.resumed[index])
        if c != cython.NULL and c.held != cython.NULL and c.held.due:
            touch(r, c)
            release_held(r, c)
        if c != cython.NULL and not c.asked and c.pause_count == 0:
            c.last_read_ms = r.now_ms
            parse_kept(r, c)
            check_transport(r, c)
    if count:
        r.resumed.erase(r.resumed.begin(), r.resumed.begin() + count)


def _flush(r, c):
    if not is_traced(c):
        return flush_output(r, c)
    trace_out(r, c)
    sent: cython.bint = flush_output(r, c)
    note_flushed(c)
    return sent


def _settle(r, c):
    """The end of the turn for a touched connection: written, sent to another reactor, or closed and freed."""
    holds(c.touched, b"reactor: a connection that is settled was touched")
    if c.fd < 0:  # closed earlier in the turn
        del c
        return
    if c.leaving:
        remove_connection(r, c)
        c.touched = False
        return
    if not c.doomed and not _flush(r, c):
        doom(r, c, 0, 0)
    if c.delivered and not pending_output(c) and not has_ended(c):  # then its output was dropped
        report_delivered(r, c, False)
    if not c.doomed and c.session != cython.NULL and c.session.outbox.next < c.session.outbox.tail:
        send_waiting(r, c.session)
        look_at_room(r, c.session)
        if not _flush(r, c):
            doom(r, c, 0, 0)
    if c.doomed:
        close_connection(r, c)
        del c
        return
    c.touched = False
    if c.session != cython.NULL and c.session.backlogs != cython.NULL:
        r.backlog_ready = r.backlog_ready or pending_output(c) <= r.common.limits.output_high_bytes // 2
    if c.session != cython.NULL and is_waited_for(c.session):
        relieve(r, c.session)
    if c.stalled and pending_output(c) <= r.common.limits.output_high_bytes // 2:
        c.stalled = False
        r.resumed.push_back(handle_of(r, c))
    update_interest(r, c)


def _end_turn(r):
    """Writes, closes, posts. Closing publishes wills, which may touch more connections: the list grows
    meanwhile.
    """
    index: cython.size_t = 0
    mark_sent(r)
    # before an answer is seen (but where an output filled up and went out within the turn), what it answers
    # for is counted and on its way to the other reactors
    if is_late(r):
        hand_over(r)
    keep_promises(r)
    publish_tally(r)
    if r.nodes_written:
        hand_to_nodes(r)
    post_outgoing(r)
    while index < r.touched.size():
        begin_work(r)  # its will, with which it cannot wait
        _settle(r, r.touched[index])
        index += 1
    r.touched.clear()
    if r.nodes_written:
        hand_to_nodes(r)
    post_outgoing(r)
    post_departing(r)
    publish_tally(r)


def _observe_turn(r, ns):
    """And its publishers that were answered within it: their answers have left with its end."""
    observe(cython.address(r.histograms[H_TURN]), ns, 1)
    if r.answered[0]:
        observe(cython.address(r.histograms[H_PUBLISH_QOS_1]), ns, r.answered[0])
    if r.answered[1]:
        observe(cython.address(r.histograms[H_PUBLISH_QOS_2]), ns, r.answered[1])
    r.answered[0] = r.answered[1] = 0


def publish_tally(r):
    """Shows the other threads what this reactor counts."""
    index: cython.int
    for index in range(COUNTER_COUNT):
        store_i64(cython.address(r.published[index]), r.tally[index], RELAXED)


def _wait_ms(r):
    """How long the turn may wait; announces sleep, so that mail posted from now on wakes us."""
    if r.resumed.size() or r.backlog_ready or r.backlog_left or r.review_left or r.ending.size() or r.keeping:
        return 0
    if r.strained_left or r.released.size() or r.due_groups.size() or r.handbacks.size():
        return 0
    if r.overloaded_left or r.reviews.size() or r.reading.size() or r.dating_at < r.dating_buckets:
        return 0
    if r.nodes_settled or r.arrived_ready or not r.arrivals.empty():
        return 0
    watching: cython.bint = r.strained.size() or load_int(cython.address(r.common.overloaded), RELAXED)
    watching = watching or r.group_list.size() > 0 or r.drops.size() > 0 or r.lingering.size() > 0
    watching = watching or r.sweep != cython.NULL or not r.releasing.empty()
    wait: int64_t = _TICK_MS if watching else _IDLE_MS
    if r.unmarked.size():
        wait = min(wait, max(r.unmarked.front().sent_ms + MARK_MS - r.now_ms, cython.cast(int64_t, 0)))
    if r.flooding.size() or r.stopping or r.nodes_holding or r.arrived.size():
        wait = 1
    if r.timers.size():
        left: int64_t = r.timers[0].due_ms - clock_ms()
        if left < wait:
            wait = left if left > 0 else 0
    store_int(cython.address(r.sleeping), 1, SEQ_CST)
    lock(cython.address(r.inbox_lock))
    if not r.inbox.empty():
        wait = 0
    # the store may have run out of work after it was last offered some
    if load_int(cython.address(r.unhanded), SEQ_CST) and load_int(
        cython.address(r.common.journal_idle), SEQ_CST
    ):
        wait = 0
    unlock(cython.address(r.inbox_lock))
    return cython.cast(cython.int, wait)


def _read_mail(r):
    """Acts on the inbox, in order. Where that does very much, the rest of it comes in the next turn."""
    take_inbox(r)
    begin_work(r)
    while r.mail_at < r.reading.size() and not is_enough(r):
        allow_steps(1)
        r.mail_at += 1
        handle_mail(r, cython.address(r.reading[r.mail_at - 1]))
    holds(r.mail_at <= r.reading.size(), b"reactor: no more mail is acted on than came")
    if r.mail_at == r.reading.size():
        r.reading.clear()
        r.mail_at = 0


def _all_written(r):
    """Whether the peers have everything: to close a socket with input unread discards what is unsent."""
    index: cython.size_t
    unsent: cython.int = 0
    if r.ledger.count or not r.promises.empty():
        return False
    for index in range(r.connections.size()):
        c: cython.pointer[Connection] = r.connections[index]
        if c == cython.NULL:
            continue
        if pending_output(c) or (ioctl(c.fd, SIOCOUTQ, cython.address(unsent)) == 0 and unsent):
            return False
    return True


def run_reactor(r):
    """Turns until the engine stops; the reactor's thread, without the GIL."""
    events: epoll_event[512]
    index: cython.int
    ask_for_short_slices()
    begin_gathering()
    if ASSERTS:
        set_reactor(r.index)
    while not (r.stopping and (r.now_ms >= r.stop_ms or _all_written(r))):
        count: cython.int = 0
        gather(r)
        if r.section != cython.NULL and not r.section.records.empty():
            count = epoll_wait(r.epoll, events, _EVENTS_MAX, 0)
            if count == 0 and hand_over(r):
                begin_turn()
                _end_turn(r)
                continue  # what was promised may have led to more
        if count == 0:
            count = epoll_wait(r.epoll, events, _EVENTS_MAX, _wait_ms(r))
        store_int(cython.address(r.sleeping), 0, SEQ_CST)
        began_ns: int64_t = clock_ns()
        r.now_ns = began_ns
        r.now_ms = began_ns // 1000000
        r.tally[C_TURNS] += 1
        begin_turn()
        r.handback_left = HANDBACK_SLICE
        r.give_left = GIVE_A_TURN
        follow_clock(r)
        _read_mail(r)
        if r.common.nodes.get() != cython.NULL:
            continue_nodes(r)
        for index in range(count):
            _handle_event(r, cython.address(events[index]))
        _run_resumed(r)
        check_flooding(r)
        _run_timers(r)
        continue_strained(r)
        continue_overloaded(r)
        continue_released(r)
        continue_backlogs(r)
        continue_review(r)
        continue_ending(r, _ENDED_MAX)
        continue_handbacks(r)
        continue_groups(r)
        continue_dating(r)
        continue_arrivals(r)
        continue_releases(r)
        _end_turn(r)
        ended_ns: int64_t = clock_ns()
        _observe_turn(r, ended_ns - began_ns)
        r.busy_ns += ended_ns - began_ns
        work_out_load(r, ended_ns)
        note_turn(r, began_ns, ended_ns)
    end_turn()  # the last one is about everything
    end_sweep(r)  # as long as there is an index
    end_handbacks(r)
    for index in range(cython.cast(cython.int, r.connections.size())):
        if r.connections[index] != cython.NULL:
            doom(r, r.connections[index], RC_SERVER_SHUTTING_DOWN, 0)
    _end_turn(r)
    report_drops(r)
    post_event(r.common, new_event(EVENT_STOPPED, r.index))
