"""Where connections live: a publisher moves to the reactor that its messages go to.

A message that has to be mailed costs about twice one that is not. So a client that has no subscriptions, and
whose messages have for a while gone to one other reactor and nowhere else, goes there, connection and
session, unless that reactor has much more to do than this one. Clients with subscriptions stay: others have
mail on its way to them.

It keeps the order of its messages, because it is posted after everything that it sent from here (see `mail`).
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint16_t
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import C_PUBLISHERS_MOVED, LIVE_SESSIONS
from cython.cimports.tidemq.engine.base.locks import lock, unlock
from cython.cimports.tidemq.engine.base.system import (
    RELAXED,
    load_int,
    store_int,
)
from cython.cimports.tidemq.engine.clients.authorising import review
from cython.cimports.tidemq.engine.clients.closing import place_connection
from cython.cimports.tidemq.engine.journal.ledger import is_owed
from cython.cimports.tidemq.engine.link.backpressure import is_waited_for
from cython.cimports.tidemq.engine.link.mail import new_mail
from cython.cimports.tidemq.engine.link.output import touch
from cython.cimports.tidemq.engine.link.timers import time_connection
from cython.cimports.tidemq.engine.queues.doubles import time_doubles
from cython.cimports.tidemq.engine.state.client import Connection, Session
from cython.cimports.tidemq.engine.state.handles import handle_of
from cython.cimports.tidemq.engine.state.mail import MAIL_MOVED, Mail
from cython.cimports.tidemq.engine.state.queue import StoredQueue

_AWAY = cython.declare(cython.uint, 256)  # messages in a row that make it move; doubled by each move before
_MOVES_MAX = cython.declare(cython.int, 8)
_BUSY = cython.declare(cython.int, 60)  # percent of the time; a reactor that is busy less takes anybody
_BUSIER = cython.declare(cython.int, 15)  # percent by which a busy reactor may be busier than this one
_LOAD_NS = cython.declare(int64_t, 50000000)


def work_out_load(r, now_ns):
    """At the end of a turn: says now and then which share of the time this reactor was busy."""
    elapsed: int64_t = now_ns - r.load_ns
    if elapsed >= _LOAD_NS:
        store_int(cython.address(r.load), cython.cast(cython.int, r.busy_ns * 100 // elapsed), RELAXED)
        r.busy_ns = 0
        r.load_ns = now_ns


def _may_move(r, c):
    """Whether nothing ties the client to this reactor: no subscriptions, nothing waited for, nothing owed to
    it.
    """
    s: cython.pointer[Session] = c.session
    if s.subscriptions != cython.NULL and not s.subscriptions.empty():
        return False
    if s.outbox.head != s.outbox.tail or s.backlogs != cython.NULL:
        return False
    q: cython.pointer[StoredQueue] = s.stored
    if q != cython.NULL and (q.waiting or q.reading or q.offered or q.older_may_come):
        return False
    if c.owed == 0 and is_owed(r, s):
        return False  # what an earlier connection is owed names this reactor
    if c.held != cython.NULL:
        return False
    return not (c.asked or c.doomed or c.leaving or c.pause_count or is_waited_for(s) or c.replays)


def consider_moving(r, c, reactors):
    """After a message that only others received. ``reactors``: a bit for each of them."""
    target: uint16_t = 0
    if reactors & (reactors - 1):  # more than one
        c.away = 0
        return
    while not reactors >> target & 1:
        target += 1
    if target != c.away_to:
        c.away_to = target
        c.away = 0
    c.away += 1
    if c.away < _AWAY << c.moves or c.moves >= _MOVES_MAX or r.stopping:
        return
    there: cython.int = load_int(cython.address(r.common.reactors[target].load), RELAXED)
    here: cython.int = load_int(cython.address(r.load), RELAXED)
    if (there < _BUSY or there <= here + _BUSIER) and _may_move(r, c):
        if c.owed:  # what it is owed names this reactor: first it gets that
            c.homing = cython.cast(cython.uchar, target + 1)
            c.pause_count += 1
            touch(r, c)
        else:
            _move(r, c, target)
    else:
        c.away = 0


def go_home(r, c):
    """The client is owed nothing any more: it moves, if nothing has come in its way meanwhile."""
    target: uint16_t = c.homing - 1
    c.homing = 0
    c.away = 0
    if _may_move(r, c) and not r.stopping:
        _move(r, c, target)


def _move(r, c, target):
    """Sends connection and session to another reactor at the end of the turn."""
    holds(c.owed == 0, b"placement: a client that moves is owed nothing")
    mail: Mail = new_mail(MAIL_MOVED)
    mail.hops = cython.cast(cython.uchar, target)
    mail.pointer = c
    mail.number = r.clock
    lock(cython.address(r.common.registry_lock))
    c.session.reactor = target
    c.session.moving = True
    if c.session.stored != cython.NULL:
        r.common.queue_owners[c.session.number] = target
    unlock(cython.address(r.common.registry_lock))
    r.sessions.erase(c.session.number)
    c.session.timer_ms = 0
    c.away = 0
    c.moves += 1
    c.leaving = True
    touch(r, c)
    r.departing.push_back(mail)
    r.tally[C_PUBLISHERS_MOVED] += 1
    r.tally[LIVE_SESSIONS] -= 1  # one of the other reactor's from now on


def welcome(r, mail):
    """A connection that comes with its session goes on here. Its messages get ids above those that it was
    given where it comes from, whatever the clocks of both reactors say.
    """
    c: cython.pointer[Connection] = cython.cast(cython.pointer[Connection], mail.pointer)
    holds(c.session.reactor == r.index, b"placement: a session that comes belongs here")
    holds(c.session.moving, b"placement: a session that comes is on its way")
    r.clock = max(r.clock, mail.number)
    c.session.last_owed = 0  # a slot of the other reactor
    r.tally[LIVE_SESSIONS] += 1
    lock(cython.address(r.common.registry_lock))
    c.session.moving = False
    unlock(cython.address(r.common.registry_lock))
    if c.session.stored != cython.NULL:
        r.sessions[c.session.number] = c.session
        time_doubles(r, c.session)
    c.leaving = False
    c.asked = r.stopping  # then nothing more is read
    c.clean_disconnect = r.stopping
    place_connection(r, c)
    touch(r, c)
    if r.policy != (cython.NULL if c.rules == cython.NULL else c.rules.policy):
        review(r, c)
    if c.keep_alive_ms:
        time_connection(r, c, r.now_ms + c.keep_alive_ms)
    r.resumed.push_back(handle_of(r, c))
