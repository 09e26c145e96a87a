"""Messages that come twice to a session which has just arrived from another node, or was at two for a while.

Its old home goes on to take messages for it until all nodes know where it is, and their rows come here by its
log. Meanwhile their publishers' nodes pass the same messages on to both. A message has one id everywhere, so
for a while after its arrival a session remembers what it has had.

What the old home took before it handed the session over may have been delivered there, and be gone: of each
reactor of each node messages come in the order of their ids, so that one id says which these are (``taken``).
They come by the log or not at all.
"""

import cython
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.utility import pair
from cython.cimports.tidemq.engine.base.counters import C_MESSAGES_COME_TWICE
from cython.cimports.tidemq.engine.base.steps import allow_steps, count_steps
from cython.cimports.tidemq.engine.state.queue import Doubles
from cython.operator import dereference

_REMEMBERED_MAX = cython.declare(
    cython.size_t, 262144
)  # messages of one session; then the oldest is forgotten
_REACTOR = cython.declare(uint64_t, 63)  # the bits of an id's clock that are its reactor


def await_doubles(r, s, for_ms):
    """From now on, for so long, another node may take messages for the session as well."""
    if s.stored.doubles == cython.NULL:
        owner: unique_ptr[Doubles] = make_unique[Doubles]()
        s.stored.doubles = owner.release()
        s.stored.doubles.until_ms = 0
    s.stored.doubles.until_ms = max(s.stored.doubles.until_ms, r.now_ms + for_ms)


def begin_doubles(r, s, arrival):
    """The session has arrived."""
    index: cython.size_t
    key: pair[uint64_t, uint64_t]
    await_doubles(r, s, arrival.doubles_ms)
    doubles: cython.pointer[Doubles] = s.stored.doubles
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
    doubles.ids.insert(key)
    return True


def comes_twice(r, s, p):
    """Whether a message that was published, here or elsewhere, is the session's already."""
    key: pair[uint64_t, uint64_t]
    doubles: cython.pointer[Doubles] = s.stored.doubles
    if r.now_ms >= doubles.until_ms:
        free_doubles(s.stored)
        return False
    key.first = p.id.origin
    key.second = p.id.clock & _REACTOR
    known = doubles.taken.find(key)
    if known != doubles.taken.end() and p.id.clock <= dereference(known).second:
        r.tally[C_MESSAGES_COME_TWICE] += 1
        return True
    return not _remember(r, s, cython.address(p.id))


def is_here(r, s, id):
    """Whether a row that another node has added is that of a message which is the session's already."""
    if s.stored.doubles == cython.NULL:
        return False
    return not _remember(r, s, id)


def forget_double(s, id):
    """The store did not take the message: the row that another node may add is that of a new one."""
    key: pair[uint64_t, uint64_t]
    if s.stored.doubles != cython.NULL:
        key.first = id.clock
        key.second = id.origin
        s.stored.doubles.ids.erase(key)


def free_doubles(q):
    """Nothing comes twice any more."""
    if q != cython.NULL and q.doubles != cython.NULL:
        del q.doubles
        q.doubles = cython.NULL
