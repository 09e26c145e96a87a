"""Mail between reactors: gathered over a turn, handed over at its end, one lock and one wake-up a receiver.

Each reactor has one inbox, in the order of posting. A connection that moves is posted after everything else
of that turn, so what its reactor sent before lies in every inbox before anything that it can cause from its
new place.
"""

import cython
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.libc.string import memset
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import C_MESSAGES_MAILED
from cython.cimports.tidemq.engine.base.locks import lock, unlock
from cython.cimports.tidemq.engine.base.message import hold_message
from cython.cimports.tidemq.engine.base.system import (
    RELAXED,
    SEQ_CST,
    load_int,
    store_int,
    write,
)
from cython.cimports.tidemq.engine.state.mail import Letter, Mail
from cython.cimports.tidemq.engine.state.reactor import Reactor


def new_mail(kind):
    """An empty mail of a kind."""
    mail: Mail
    memset(cython.address(mail), 0, cython.sizeof(Mail))
    mail.kind = kind
    return mail


def new_letter():
    """The texts that come with a rare mail; the receiver frees them."""
    owner: unique_ptr[Letter] = make_unique[Letter]()
    return owner.release()


def free_letter(letter):
    """Frees a letter, or does nothing with NULL."""
    del letter


def send_message_mail(r, target, kind, message):
    """Mails a message; the mail holds it. Returns the mail, to be filled in before another is sent."""
    mail: Mail = new_mail(kind)
    hold_message(message)
    mail.message = message
    r.tally[C_MESSAGES_MAILED] += 1
    r.outgoing[target].push_back(mail)
    return cython.address(r.outgoing[target].back())


def send_number_mail(r, target, kind, number):
    """Mails a kind that needs no more than a number."""
    mail: Mail = new_mail(kind)
    mail.number = number
    r.outgoing[target].push_back(mail)


def wake(target):
    """Ends the reactor's wait, if it waits; from any thread."""
    if load_int(cython.address(target.sleeping), SEQ_CST):
        store_int(cython.address(target.sleeping), 0, SEQ_CST)
        one: uint64_t = 1
        write(target.wake, cython.address(one), cython.sizeof(uint64_t))


def post_directly(target, mail):
    """Posts one mail from any thread."""
    lock(cython.address(target.inbox_lock))
    target.inbox.push_back(mail[0])
    store_int(cython.address(target.inbox_count), cython.cast(cython.int, target.inbox.size()), RELAXED)
    unlock(cython.address(target.inbox_lock))
    wake(target)


def post_all(target, mails):
    """Posts some from any thread, under one lock."""
    if mails.empty():
        return
    lock(cython.address(target.inbox_lock))
    target.inbox.insert(target.inbox.end(), mails.begin(), mails.end())
    store_int(cython.address(target.inbox_count), cython.cast(cython.int, target.inbox.size()), RELAXED)
    unlock(cython.address(target.inbox_lock))
    wake(target)


def post_outgoing(r):
    """Hands over what was sent since the last time."""
    index: cython.size_t
    for index in range(r.outgoing.size()):
        if r.outgoing[index].empty():
            continue
        target: cython.pointer[Reactor] = r.common.reactors[index]
        lock(cython.address(target.inbox_lock))
        if target.inbox.empty():
            target.inbox.swap(r.outgoing[index])
        else:
            target.inbox.insert(target.inbox.end(), r.outgoing[index].begin(), r.outgoing[index].end())
        store_int(cython.address(target.inbox_count), cython.cast(cython.int, target.inbox.size()), RELAXED)
        unlock(cython.address(target.inbox_lock))
        r.outgoing[index].clear()
        wake(target)


def take_inbox(r):
    """Moves the inbox to ``r.reading``, once all that is there has been acted on."""
    if not r.reading.empty():
        return
    holds(r.mail_at == 0, b"mail: what was taken before is acted on")
    lock(cython.address(r.inbox_lock))
    holds(
        load_int(cython.address(r.inbox_count), RELAXED) == cython.cast(cython.int, r.inbox.size()),
        b"mail: an inbox says how much is in it",
    )
    r.reading.swap(r.inbox)
    store_int(cython.address(r.inbox_count), 0, RELAXED)
    unlock(cython.address(r.inbox_lock))
