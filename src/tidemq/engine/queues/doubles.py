"""Messages that come twice to a session which has just arrived from another node, or was at two for a while.

Its old home goes on to take messages for it until all nodes know where it is, and their rows come here by its
log. Meanwhile their publishers' nodes pass the same messages on to both. A message has one id everywhere, so
for a while after its arrival a session remembers what it has had.

What the old home took before it handed the session over may have been delivered there, and be gone: of each
reactor of each node messages come in the order of their ids, so that one id says which these are (``taken``).
They come by the log or not at all.

When that while is over all of it is forgotten: by the next message or row for the session, or by a timer.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint64_t
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.utility import pair
from cython.cimports.tidemq.engine.base.counters import C_MESSAGES_COME_TWICE, MEMORY_SESSIONS
from cython.cimports.tidemq.engine.base.steps import allow_steps, count_steps
from cython.cimports.tidemq.engine.link.timers import add_timer
from cython.cimports.tidemq.engine.state.client import Session
from cython.cimports.tidemq.engine.state.mail import TIMER_DOUBLES
from cython.cimports.tidemq.engine.state.queue import Doubles
from cython.operator import dereference

_REMEMBERED_MAX = cython.declare(
    cython.size_t, 262144
)  # messages of one session; then the oldest is forgotten
_DOUBLES_BYTES = cython.declare(int64_t, 128)  # about; what is remembered comes to it
_MARK_BYTES = cython.declare(int64_t, 64)  # about, with its place in a tree
_REACTOR = cython.declare(uint64_t, 63)  # the bits of an id's clock that are its reactor


def await_doubles(r, s, for_ms):
    """From now on, for so long, another node may take messages for the session as well."""
    if s.stored.doubles == cython.NULL:
        owner: unique_ptr[Doubles] = make_unique[Doubles]()
        s.stored.doubles = owner.release()
        s.stored.doubles.until_ms = r.now_ms + for_ms
        r.tally[MEMORY_SESSIONS] += _DOUBLES_BYTES
        time_doubles(r, s)
    s.stored.doubles.until_ms = max(s.stored.doubles.until_ms, r.now_ms + for_ms)


def begin_doubles(r, s, arrival):
    """The session has arrived."""
    index: cython.size_t
    key: pair[uint64_t, uint64_t]
    await_doubles(r, s, arrival.doubles_ms)
    doubles: cython.pointer[Doubles] = s.stored.doubles
    size: int64_t = _size_of(doubles)
    allow_steps(arrival.taken.size() + arrival.recent.size())
    for index in range(arrival.taken.size()):
        count_steps(1)
        key.first = arrival.taken[index].origin
        key.second = arrival.taken[index].reactor
        doubles.taken[key] = arrival.taken[index].clock
    for index in range(arrival.recent.size()):
        count_steps(1)
        key.first = arrival.recent[index].clock
        key.second = arrival.recent[index].origin
        doubles.ids.insert(key)
    r.tally[MEMORY_SESSIONS] += _size_of(doubles) - size


def _size_of(doubles):
    return _DOUBLES_BYTES + cython.cast(int64_t, doubles.ids.size() + doubles.taken.size()) * _MARK_BYTES


def time_doubles(r, s):
    """Sets a timer for the end of what is remembered, if anything is: also where the session has come from
    another reactor.
    """
    if s.stored.doubles != cython.NULL:
        add_timer(r, s.stored.doubles.until_ms, s.number, TIMER_DOUBLES)


def doubles_due(r, number):
    """A timer: the session forgets what it remembers, unless that was needed for longer meanwhile. Returns
    how many messages it forgot.
    """
    known = r.sessions.find(number)
    if known == r.sessions.end():
        return 0
    s: cython.pointer[Session] = dereference(known).second
    if s.stored == cython.NULL or s.stored.doubles == cython.NULL:
        return 0
    count: cython.int = cython.cast(cython.int, s.stored.doubles.ids.size())
    if _is_over(r, s):
        return count
    time_doubles(r, s)
    return 0


def _is_over(r, s):
    """Whether nothing comes twice any more; then all is forgotten."""
    if r.now_ms < s.stored.doubles.until_ms:
        return False
    free_doubles(r, s.stored)
    return True


def _remember(r, s, id):
    """Whether it is new."""
    key: pair[uint64_t, uint64_t]
    key.first = id.clock
    key.second = id.origin
    doubles: cython.pointer[Doubles] = s.stored.doubles
    if doubles.ids.count(key):
        r.tally[C_MESSAGES_COME_TWICE] += 1
        return False
    if doubles.ids.size() >= _REMEMBERED_MAX:
        doubles.ids.erase(doubles.ids.begin())
        r.tally[MEMORY_SESSIONS] -= _MARK_BYTES
    doubles.ids.insert(key)
    r.tally[MEMORY_SESSIONS] += _MARK_BYTES
    return True


def comes_twice(r, s, p):
    """Whether a message that was published, here or elsewhere, is the session's already."""
    key: pair[uint64_t, uint64_t]
    if _is_over(r, s):
        return False
    doubles: cython.pointer[Doubles] = s.stored.doubles
    key.first = p.id.origin
    key.second = p.id.clock & _REACTOR
    known = doubles.taken.find(key)
    if known != doubles.taken.end() and p.id.clock <= dereference(known).second:
        r.tally[C_MESSAGES_COME_TWICE] += 1
        return True
    return not _remember(r, s, cython.address(p.id))


def is_here(r, s, id):
    """Whether a row that another node has added is that of a message which is the session's already."""
    if s.stored.doubles == cython.NULL or _is_over(r, s):
        return False
    return not _remember(r, s, id)


def forget_double(r, s, id):
    """The store did not take the message: the row that another node may add is that of a new one."""
    key: pair[uint64_t, uint64_t]
    if s.stored.doubles != cython.NULL:
        key.first = id.clock
        key.second = id.origin
        gone: cython.size_t = s.stored.doubles.ids.erase(key)
        r.tally[MEMORY_SESSIONS] -= cython.cast(int64_t, gone) * _MARK_BYTES


def free_doubles(r, q):
    """Nothing comes twice any more."""
    if q != cython.NULL and q.doubles != cython.NULL:
        r.tally[MEMORY_SESSIONS] -= _size_of(q.doubles)
        del q.doubles
        q.doubles = cython.NULL
