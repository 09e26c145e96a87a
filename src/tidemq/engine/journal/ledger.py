"""Promises to publishers: each publisher's in its own order, and nobody's behind another's.

They lie in slots, and those to one session are linked, oldest first: only the first of them may be kept,
and then the next is looked at (``commit_results``). So what one waits for, another reactor above all, holds
up nobody but its own publisher, and what is done for one costs the same however many others wait.

A slot is looked at when its section is committed (``due``), when the one before it has been kept, and
whenever it was found to wait for nothing any more (``ready``). To look in vain does no harm, so nobody is
taken out of these lists. A session names the last promise to it by its slot, which may be free or somebody
else's by now; that it is not shows in the promise itself.

Bounded: a publisher that is owed ``receive_max`` is not read from.
"""

import cython
from cython.cimports.libc.stdint import uint32_t
from cython.cimports.libcpp.vector import vector
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.journal.ledger import promise_at, token_of
from cython.cimports.tidemq.engine.state.promise import PROMISE_PUBLISHED, PROMISE_VOID, Due, Promise

_SLOTS_KEPT = cython.declare(
    uint32_t, 4096
)  # when nothing is owed any more; the memory of others is given back


def next_token(r):
    """What the next promise to a publisher will be known by to other reactors; never 0."""
    slot: uint32_t = r.ledger.free
    if slot == 0:
        slot = cython.cast(uint32_t, r.ledger.slots.size() + 1)
    return token_of(r, slot)


def is_owed(r, s):
    """Whether a promise to this publisher is still to be kept."""
    slot: uint32_t = s.last_owed
    if slot == 0 or slot > r.ledger.slots.size():
        return False
    return r.ledger.slots[slot - 1].kind == PROMISE_PUBLISHED and r.ledger.slots[slot - 1].number == s.number


def enter_promise(r, s, promise):
    """Behind all that its publisher is owed, or, without a session, behind nothing; returns its slot."""
    owed: cython.bint = s != cython.NULL and is_owed(r, s)
    slot: uint32_t = r.ledger.free
    if slot:
        holds(promise_at(r, slot).kind == PROMISE_VOID, b"ledger: a free slot has no promise")
        r.ledger.free = promise_at(r, slot).next
        promise_at(r, slot)[0] = promise[0]
    else:
        r.ledger.slots.push_back(promise[0])
        slot = cython.cast(uint32_t, r.ledger.slots.size())
    r.ledger.count += 1
    holds(r.ledger.count <= r.ledger.slots.size(), b"ledger: there is a slot for each promise")
    r.ledger.again += promise.again
    promise_at(r, slot).next = 0
    promise_at(r, slot).since_ns = r.now_ns
    promise_at(r, slot).first = not owed
    if owed:
        holds(promise_at(r, s.last_owed).next == 0, b"ledger: nothing stands behind what is owed last")
        promise_at(r, s.last_owed).next = slot
    if s != cython.NULL:
        s.last_owed = slot
        if s.stored != cython.NULL and s.stored.unrecorded == 0:
            s.stored.unrecorded = slot
    if promise.section:
        await_section(r, slot, promise.section)
    return slot


def await_section(r, slot, section):
    """The slot is looked at when the section is committed, which must be the last one so far."""
    due: Due
    holds(
        r.ledger.due.empty() or r.ledger.due.back().section <= section,
        b"ledger: slots are due in the order of sections",
    )
    due.section = section
    due.slot = slot
    r.ledger.due.push_back(due)


def take_promise(r, slot, promise):
    """Takes the promise out of its slot if it can be kept now; ``promise.next`` is then the first."""
    nothing: vector[Promise]
    if slot == 0 or slot > r.ledger.slots.size():
        return False
    found: cython.pointer[Promise] = promise_at(r, slot)
    if found.kind == PROMISE_VOID or not found.first or found.answers or found.section > r.committed:
        return False
    promise[0] = found[0]
    found.message = cython.NULL
    found.takers = cython.NULL
    if found.next:
        promise_at(r, found.next).first = True
    found.kind = PROMISE_VOID
    found.next = r.ledger.free
    r.ledger.free = slot
    r.ledger.count -= 1
    r.ledger.again -= found.again
    if r.ledger.count == 0 and r.ledger.slots.size() > _SLOTS_KEPT:
        r.ledger.slots.swap(nothing)
        r.ledger.free = 0
    return True
