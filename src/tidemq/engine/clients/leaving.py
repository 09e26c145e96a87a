"""Sessions that leave: another node has them from now on, and their rows stay.

The client is disconnected as if it had connected again here: its will goes out, unless a delay lets the
session's going on cancel it [MQTT-3.1.4-3]. Where another node has the session for another reason than that
its client came there, as after a split, the client is to come again (0x9C, not 0x8E). Then the session
waits until nothing of it is open: its will is with everybody, no QoS 2 message of its client's or for it is
offered, its publisher is owed nothing, no window of its queue is being read, and what it held of shared
groups is back in their queues. All that is recorded by then, and it is forgotten; the record that says so
is the last one about it. A client that comes meanwhile is disconnected, too.

A session may also be handed over first: then it is not forgotten yet, but goes on to take what comes for it,
until other nodes know where that is to go from now on, and it leaves. A client that comes for it meanwhile,
whose CONNECT was answered a moment before, is refused: what it did here would be nobody's. Its timers do
nothing here meanwhile: its will and its end are its new home's.

Where nobody comes for it, it is taken back, and is as any other again; what fell due meanwhile happens then.

``Reactor.releasing`` has a byte before each client id: how it leaves.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint64_t
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.counters import C_SESSIONS_RELEASED, C_SESSIONS_TAKEN_OVER
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.clients.closing import close_connection
from cython.cimports.tidemq.engine.clients.wills import publish_last_will
from cython.cimports.tidemq.engine.journal.journal import tell_store
from cython.cimports.tidemq.engine.journal.ledger import is_owed
from cython.cimports.tidemq.engine.link.mail import new_letter, new_mail
from cython.cimports.tidemq.engine.link.output import doom
from cython.cimports.tidemq.engine.link.timers import time_session
from cython.cimports.tidemq.engine.queues.received_identifiers import store_all_received
from cython.cimports.tidemq.engine.queues.sessions import Found, end_session, find_session, forget_session
from cython.cimports.tidemq.engine.state.client import Connection, Session
from cython.cimports.tidemq.engine.state.departure import HAND_OVER, LOSE, TAKE_BACK
from cython.cimports.tidemq.engine.state.mail import MAIL_RELEASE, Mail
from cython.cimports.tidemq.engine.state.section import RECORD_LEFT, Record
from cython.cimports.tidemq.wire.protocol import FAULT_NONE, RC_SESSION_TAKEN_OVER, RC_USE_ANOTHER_SERVER

_LOOKS_A_TURN = cython.declare(cython.size_t, 256)  # at sessions that wait


def _tell(r, client_id, here, place):
    record: cython.pointer[Record] = tell_store(r, RECORD_LEFT, client_id)
    record.status = here
    record.sequence = place


def _is_open(r, s):
    """Whether something of an offline session is still to be decided, or on its way."""
    if s.will != cython.NULL and s.will.token:
        return True
    if s.offers or s.stored.offered or s.stored.reading or is_owed(r, s):
        return True
    return s.memberships != cython.NULL and s.memberships.handback != cython.NULL


def _pass_on(r, client_id, how, reactor):
    """The session is another reactor's, or an earlier one's removal is in its section."""
    mail: Mail = new_mail(MAIL_RELEASE)
    mail.reason = how
    mail.letter = new_letter()
    name: unique_ptr[string] = make_unique[string](client_id[0])
    mail.letter.text = name.release()
    r.outgoing[reactor].push_back(mail)


def _release(r, client_id, how):
    """Whether it has left, or is not here to leave; False: something of it is open."""
    found: Found = find_session(r, client_id, False)
    here: cython.bint = False
    if found.session != cython.NULL and found.reactor == r.index and not found.moving:
        c: cython.pointer[Connection] = found.session.connection
        if c != cython.NULL:
            here = True
            r.tally[C_SESSIONS_TAKEN_OVER] += 1
            reason: uint8_t = RC_USE_ANOTHER_SERVER if how == LOSE else RC_SESSION_TAKEN_OVER
            doom(r, c, reason, FAULT_NONE)
            c.doom_reason = reason
            close_connection(r, c)
            found = find_session(r, client_id, False)  # it may have ended with its connection
    if found.reactor != r.index or found.moving:
        _pass_on(r, client_id, how, found.reactor)
        return True
    s: cython.pointer[Session] = found.session
    if s == cython.NULL:
        _tell(r, client_id, here, 0)
        return True
    if s.stored == cython.NULL:
        publish_last_will(r, s)
        end_session(r, s)
        _tell(r, client_id, True, 0)
        return True
    if _is_open(r, s):
        return False
    place: uint64_t = s.outbox.tail
    store_all_received(r, s)
    if how in (HAND_OVER, LOSE):
        s.handed = True
    else:
        forget_session(r, s)
        r.tally[C_SESSIONS_RELEASED] += 1
    _tell(r, client_id, True, place)
    return True


def _take_back(r, client_id):
    """A session that was handed over, and that nobody has taken, is its client's again."""
    found: Found = find_session(r, client_id, False)
    if found.session == cython.NULL:
        return
    if found.reactor != r.index or found.moving:
        _pass_on(r, client_id, TAKE_BACK, found.reactor)
    elif found.session.handed:
        found.session.handed = False
        time_session(r, found.session)


def release_session(r, client_id, how):
    """A session is to leave, or to be handed over, now or once nothing of it is open; the store's thread is
    told. Or it is taken back.
    """
    entry: string
    if how == TAKE_BACK:
        _take_back(r, client_id)
    elif not _release(r, client_id, how):
        entry.push_back(cython.cast(cython.char, how))
        entry.append(client_id[0])
        r.releasing.push_back(entry)


def continue_releases(r):
    """Once a turn: looks whether something is open still of some that are to leave."""
    looks: cython.size_t = min(r.releasing.size(), _LOOKS_A_TURN)
    while looks:
        count_steps(1)
        looks -= 1
        client_id: string = r.releasing.front()
        r.releasing.pop_front()
        how: uint8_t = client_id[0]
        client_id.erase(0, 1)
        release_session(r, cython.address(client_id), how)
