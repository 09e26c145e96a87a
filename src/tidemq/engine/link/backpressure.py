"""Back-pressure before loss.

A receiver whose output or queue passes its mark is strained: the publishers that feed it are read no more
until it is below again. A publisher may wait for several receivers: ``pause_count`` says for how many.

They are patient with who reads, at whatever pace, and not with who stalls. A receiver has ``backpressure_s``
of patience. Every ``backpressure_s / 5`` in which it takes something worth mentioning is free; a longer time
in which it does not is taken from its patience, and comes back at a twentieth of the time that it keeps up.
When there is none left it is slow: publishers go on, QoS 0 messages to it are dropped, and its queue fills to
its limits. So who stalls again and again holds nobody, and who reads steadily loses nothing.

What is on its way to a full queue while its publishers are told to wait, one message of each and what lies in
inboxes, still gets a place. The memory ceiling stops every publisher in the same way.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint64_t
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import (
    C_PUBLISHERS_PAUSED,
    MEMORY_SESSIONS,
)
from cython.cimports.tidemq.engine.base.engine_limits import EngineLimits
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.base.system import (
    RELAXED,
    SIOCOUTQ,
    ioctl,
    load_int,
)
from cython.cimports.tidemq.engine.link.backpressure import (
    high_mark,
    is_waited_for,
    queued_bytes,
    queued_messages,
)
from cython.cimports.tidemq.engine.link.mail import send_number_mail
from cython.cimports.tidemq.engine.link.output import pending_output, touch
from cython.cimports.tidemq.engine.state.captured import CAPTURED_BYTES_MAX
from cython.cimports.tidemq.engine.state.client import Connection, Session
from cython.cimports.tidemq.engine.state.handles import connection_of, handle_of, reactor_of
from cython.cimports.tidemq.engine.state.mail import MAIL_PAUSE, MAIL_RESUME
from cython.cimports.tidemq.engine.state.reactor import Reactor
from cython.cimports.tidemq.engine.state.strain import Feeders, Strain
from cython.operator import dereference

_TICK_MS = cython.declare(int64_t, 100)  # a receiver with less patience than this has none
_STEADY = cython.declare(int64_t, 5)  # parts of backpressure_s, each of which it has to take enough in:
_ENOUGH_MESSAGES = cython.declare(int64_t, 32)  # so many messages of its queue
_ENOUGH_BYTES = cython.declare(uint64_t, 32)  # or this part of output_high_bytes
_RECOVERY = cython.declare(int64_t, 20)  # a part of the time in which it keeps up comes back as patience
_MERCY_MS = cython.declare(int64_t, 200)  # of patience, with which a slow receiver is waited for again
_HYSTERESIS = cython.declare(uint64_t, 1024)  # messages at the most between a queue's two marks
_SLICE = cython.declare(cython.size_t, 4096)  # receivers looked at, or publishers let go on, in one turn


def pause_feeder(r, feeder):
    """Reads nothing more from a publisher, on whichever reactor it lives."""
    if reactor_of(feeder) != r.index:
        send_number_mail(r, reactor_of(feeder), MAIL_PAUSE, feeder)
        return
    c: cython.pointer[Connection] = connection_of(r, feeder)
    if c != cython.NULL:
        c.pause_count += 1
        r.tally[C_PUBLISHERS_PAUSED] += 1


def resume_feeder(r, feeder):
    """Takes one pause back; the last one lets the publisher go on with what it has sent meanwhile."""
    count_steps(1)
    if reactor_of(feeder) != r.index:
        send_number_mail(r, reactor_of(feeder), MAIL_RESUME, feeder)
        return
    c: cython.pointer[Connection] = connection_of(r, feeder)
    holds(c == cython.NULL or c.pause_count > 0, b"backpressure: who goes on was paused")
    if c != cython.NULL and c.pause_count:
        c.pause_count -= 1
        if c.pause_count == 0:
            r.resumed.push_back(feeder)


def pause_held(r, c):
    """Reads nothing more from a client whose messages wait for plugins (`clients.holding`)."""
    if not c.held.paused:
        c.held.paused = True
        c.pause_count += 1
        touch(r, c)


def wait_behind(r, c):
    """What is no PUBLISH, or the connection's end, has come behind them: it waits until none is held."""
    c.held.behind = True
    pause_held(r, c)


# --- receivers -------------------------------------------------------------------------------------


def _queue_is_low(r, s):
    limits: cython.pointer[cython.const[EngineLimits]] = cython.address(r.common.limits)
    if s.outbox.bytes > limits.output_high_bytes // 2:
        return False
    step: uint64_t = min(cython.cast(uint64_t, limits.queued_messages_max // 8), _HYSTERESIS)
    if queued_messages(s) + max(step, cython.cast(uint64_t, 1)) > high_mark(limits.queued_messages_max):
        return False
    return queued_bytes(s) <= high_mark(limits.queued_bytes_max) - limits.queued_bytes_max // 8


def may_overfill(r, s, feeder, attended):
    """Whether a full queue takes one message more: it is of somebody who is there and is waited for, and the
    message of a publisher that is told to wait, or was a moment ago, by mail that has not got there.

    ``attended``: it is the queue of a shared group with a member that is there.
    """
    limits: cython.pointer[cython.const[EngineLimits]] = cython.address(r.common.limits)
    patience_ms: int64_t = limits.backpressure_ms
    if s.strain != cython.NULL:
        patience_ms = 0 if s.strain.slow else s.strain.patience_ms
    if feeder == 0 or patience_ms < _TICK_MS:
        return False
    if not attended and (s.connection == cython.NULL or s.connection.doomed):
        return False
    # as much as two inboxes hold: one that is being acted on, and what comes before a pause gets there
    most: uint64_t = limits.queued_messages_max + 2 * cython.cast(uint64_t, limits.inbox_messages_max)
    return queued_messages(s) < most and queued_bytes(s) < limits.queued_bytes_max + limits.output_bytes_max


def _bytes_taken(s):
    """That the client's machine has taken of its output. What the socket has is not there yet: the system
    tells that it has room only when it has much.
    """
    c: cython.pointer[Connection] = s.connection
    unsent: cython.int = 0
    if c == cython.NULL:
        return 0
    ioctl(c.fd, SIOCOUTQ, cython.address(unsent))
    return c.output.taken - min(c.output.taken, cython.cast(uint64_t, unsent))


def _note_taken(r, s):
    s.strain.since_ms = r.now_ms
    s.strain.taken_messages = s.outbox.head
    s.strain.taken_bytes = _bytes_taken(s)


def _has_taken(r, s):
    """Whether it has taken enough since the last time to count as one who reads."""
    strain: cython.pointer[Strain] = s.strain
    # what members hand back to a shard lowers its head
    taken_messages: int64_t = cython.cast(int64_t, s.outbox.head) - cython.cast(
        int64_t, strain.taken_messages
    )
    if taken_messages >= _ENOUGH_MESSAGES:
        return True
    taken: uint64_t = _bytes_taken(s)
    least: uint64_t = r.common.limits.output_high_bytes // _ENOUGH_BYTES
    return taken > strain.taken_bytes and taken - strain.taken_bytes >= least


def _charge(r, strain):
    """It has taken something: what came before it was free, or costs patience."""
    gap_ms: int64_t = r.now_ms - strain.since_ms
    if gap_ms <= r.common.limits.backpressure_ms // _STEADY:
        _recover(r, strain)
    elif not strain.slow:
        strain.patience_ms = max(strain.patience_ms - gap_ms, cython.cast(int64_t, 0))


def _recover(r, strain):
    """It has kept up since the last time."""
    earned_ms: int64_t = strain.patience_ms + (r.now_ms - strain.since_ms) // _RECOVERY
    strain.patience_ms = min(earned_ms, r.common.limits.backpressure_ms)


def _begin_wait(r, s):
    strain: cython.pointer[Strain] = s.strain
    if strain == cython.NULL:
        owner: unique_ptr[Strain] = make_unique[Strain]()
        strain = s.strain = owner.release()
        strain.patience_ms = r.common.limits.backpressure_ms
        r.tally[MEMORY_SESSIONS] += cython.sizeof(Strain)
    else:
        _recover(r, strain)
    strain.waited_for = True
    strain.slow = strain.patience_ms < _TICK_MS
    strain.place = r.strained.size()
    r.strained.push_back(s)
    _note_taken(r, s)


def wait_for(r, s, feeder):
    """The receiver is above its mark because of what ``feeder`` (0: nobody that can wait) published."""
    if not is_waited_for(s):
        _begin_wait(r, s)
    strain: cython.pointer[Strain] = s.strain
    if strain.slow or feeder == 0:
        return
    if strain.feeders == cython.NULL:
        owner: unique_ptr[Feeders] = make_unique[Feeders]()
        strain.feeders = owner.release()
    if strain.feeders.insert(feeder).second:
        pause_feeder(r, feeder)


def wait_for_queue(r, s, feeder, attended):
    """A message of ``feeder`` has gone into a queue that is high.

    A receiver that is paused itself cannot acknowledge: to wait for it would be to wait for each other.
    """
    c: cython.pointer[Connection] = s.connection
    if (c == cython.NULL and attended) or (
        c != cython.NULL and not c.doomed and c.pause_count == 0 and feeder != handle_of(r, c)
    ):
        wait_for(r, s, feeder)


def _release_feeders(r, strain):
    """Lets everybody who waits for this receiver go on, in the next turns: they may be very many."""
    if strain.feeders != cython.NULL:
        r.released.push_back(strain.feeders)
        strain.feeders = cython.NULL


def continue_released(r):
    """Some of those who need not wait any more go on."""
    left: cython.size_t = _SLICE
    while left and not r.released.empty():
        feeders: cython.pointer[Feeders] = r.released.back()
        if feeders.empty():
            r.released.pop_back()
            del feeders
            continue
        count_steps(1)
        feeder: uint64_t = dereference(feeders.begin())
        feeders.erase(feeders.begin())
        resume_feeder(r, feeder)
        left -= 1


def free_released(r):
    """The reactor has ended, and nobody goes on."""
    index: cython.size_t
    for index in range(r.released.size()):
        del r.released[index]
    r.released.clear()


def stop_waiting(r, s):
    """Nobody waits for this receiver any more: it is low again, or gone. How patient one is stays known."""
    if not is_waited_for(s):
        return
    strain: cython.pointer[Strain] = s.strain
    holds(
        strain.place < r.strained.size() and r.strained[strain.place] == s,
        b"backpressure: a strained receiver knows its place",
    )
    if not strain.slow:
        _charge(r, strain)
    strain.since_ms = r.now_ms
    strain.waited_for = False
    strain.slow = False
    _release_feeders(r, strain)
    last: cython.pointer[Session] = r.strained.back()
    last.strain.place = strain.place
    r.strained[strain.place] = last
    r.strained.pop_back()


def end_strain(r, s):
    """The session ends, or goes to another reactor."""
    stop_waiting(r, s)
    if s.strain != cython.NULL:
        del s.strain
        s.strain = cython.NULL
        r.tally[MEMORY_SESSIONS] -= cython.sizeof(Strain)


def relieve(r, s):
    """Lets its publishers go on once the output, and what waits behind it, are low."""
    c: cython.pointer[Connection] = s.connection
    if c != cython.NULL and pending_output(c) > r.common.limits.output_high_bytes // 2:
        return
    # while it is paused its acknowledgements are not read: to wait for them would be to wait for each other
    if (c == cython.NULL or c.pause_count == 0) and not _queue_is_low(r, s):
        return
    stop_waiting(r, s)


def _look_at(r, s):
    """Has it taken enough, or does patience with it run out?"""
    strain: cython.pointer[Strain] = s.strain
    holds(
        not strain.slow or strain.feeders == cython.NULL,
        b"backpressure: nobody waits for a receiver that is slow",
    )
    if _has_taken(r, s):
        _charge(r, strain)
        _note_taken(r, s)
        if strain.slow and strain.patience_ms >= _MERCY_MS:
            strain.slow = False
    elif not strain.slow and r.now_ms - strain.since_ms >= strain.patience_ms:
        strain.patience_ms = 0
        strain.slow = True
        _release_feeders(r, strain)
    if s.connection == cython.NULL:
        relieve(r, s)
    else:
        touch(r, s.connection)  # it may be low though nothing came of it: messages have expired


def check_strained(r):
    """Once a tick: receivers that publishers wait for are looked at, some in each turn."""
    if r.strained_left == 0:
        r.strained_left = r.strained.size()


def continue_strained(r):
    """Looks at some of them. One that takes the place of one that has gone is looked at in the next tick."""
    left: cython.size_t = _SLICE
    while left and r.strained_left:
        r.strained_left -= 1
        left -= 1
        if r.strained_left < r.strained.size():
            count_steps(1)
            _look_at(r, r.strained[r.strained_left])


# --- inboxes and memory ----------------------------------------------------------------------------


def wait_for_inbox(r, target, feeder):
    """A publisher of this reactor that mails faster than the other reactor reads is held until that has
    caught up.
    """
    other: cython.pointer[Reactor] = r.common.reactors[target]
    waiting: cython.size_t = load_int(cython.address(other.inbox_count), RELAXED)
    waiting += r.outgoing[target].size()  # that goes there at the end of this turn
    if waiting >= cython.cast(cython.size_t, r.common.limits.inbox_messages_max):
        hold_feeder(r, feeder)


def hold_feeder(r, feeder):
    """Reads nothing more from a publisher of this reactor until ``check_flooding`` lets it go on."""
    if reactor_of(feeder) != r.index:
        return
    c: cython.pointer[Connection] = connection_of(r, feeder)
    if c != cython.NULL and c.pause_count == 0:
        r.flooding.push_back(feeder)
        pause_feeder(r, feeder)


def check_flooding(r):
    """Once a turn: publishers go on, who have waited longest first, when every reactor's inbox, and what the
    disk has to take for streams, is below half of its mark.
    """
    index: cython.size_t
    if r.flooding.empty() or r.captured_bytes > CAPTURED_BYTES_MAX // 2:
        return
    for index in range(r.common.reactors.size()):
        waiting: cython.int = load_int(cython.address(r.common.reactors[index].inbox_count), RELAXED)
        if waiting > r.common.limits.inbox_messages_max // 2:
            return
    count: cython.size_t = min(r.flooding.size(), _SLICE)
    for index in range(count):
        count_steps(1)
        resume_feeder(r, r.flooding[index])
    r.flooding.erase(r.flooding.begin(), r.flooding.begin() + count)
