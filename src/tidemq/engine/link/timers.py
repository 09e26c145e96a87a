"""A reactor's timers: a binary heap, earliest first.

A packet that arrives only notes the time; the timer that finds its connection alive is set again. So a timer
costs nothing per packet, and a connection has one at most.
"""

import cython
from cython.cimports.libc.stdint import int64_t
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.state.client import FOR_EVER
from cython.cimports.tidemq.engine.state.handles import handle_of
from cython.cimports.tidemq.engine.state.mail import TIMER_CONNECTION, TIMER_SESSION, Timer

# A timer that is stale by then goes; one that is not is set again. So who connects and goes in a flood, each
# time with a long keep alive, leaves timers of no longer than that.
_LONGEST_MS = cython.declare(int64_t, 300000)


def add_timer(r, due_ms, key, kind):
    """Adds a timer; there is no way to take one out, what it names is looked up when it is due."""
    timer: Timer
    timer.due_ms = due_ms
    timer.key = key
    timer.kind = kind
    r.timers.push_back(timer)
    at: cython.size_t = r.timers.size() - 1
    while at:
        parent: cython.size_t = (at - 1) // 2
        if r.timers[parent].due_ms <= r.timers[at].due_ms:
            break
        _swap(r, parent, at)
        at = parent
    holds(r.timers[0].due_ms <= due_ms, b"timers: none is due before the first")


def _swap(r, a, b):
    kept: Timer = r.timers[a]
    r.timers[a] = r.timers[b]
    r.timers[b] = kept


def take_timer(r):
    """Takes the earliest timer; the heap must not be empty."""
    first: Timer = r.timers[0]
    r.timers[0] = r.timers.back()
    r.timers.pop_back()
    size: cython.size_t = r.timers.size()
    at: cython.size_t = 0
    while True:
        child: cython.size_t = at * 2 + 1
        if child >= size:
            break
        if child + 1 < size and r.timers[child + 1].due_ms < r.timers[child].due_ms:
            child += 1
        if r.timers[at].due_ms <= r.timers[child].due_ms:
            break
        _swap(r, at, child)
        at = child
    holds(
        (size < 2 or r.timers[0].due_ms <= r.timers[1].due_ms)
        and (size < 3 or r.timers[0].due_ms <= r.timers[2].due_ms),
        b"timers: the one that comes next is the earliest",
    )
    return first


def time_connection(r, c, due_ms):
    """Sets the connection's one timer; an earlier one stays, for it looks again when it is due."""
    holds(
        c.slot < r.connections.size() and r.connections[c.slot] == c,
        b"timers: a connection that gets one is here",
    )
    due_ms = min(due_ms, r.now_ms + _LONGEST_MS)
    if c.timer_ms and c.timer_ms <= due_ms:
        return
    c.timer_ms = due_ms
    add_timer(r, due_ms, handle_of(r, c), TIMER_CONNECTION)


def begin_expiry(r, s):
    """A session's client has gone: from now on its Session Expiry Interval passes."""
    s.ends_ms = 0
    if s.expiry_s != FOR_EVER:
        s.ends_ms = r.now_ms + cython.cast(int64_t, s.expiry_s) * 1000


def time_session(r, s):
    """Sets a timer for what comes first: the session's will or its end."""
    due_ms: int64_t = s.ends_ms
    if s.will_ms and (due_ms == 0 or s.will_ms < due_ms):
        due_ms = s.will_ms
    due_ms = min(due_ms, r.now_ms + _LONGEST_MS)
    if due_ms and (s.timer_ms == 0 or s.timer_ms > due_ms):
        s.timer_ms = due_ms
        r.sessions[s.number] = s
        add_timer(r, due_ms, s.number, TIMER_SESSION)
