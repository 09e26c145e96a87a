"""The end of an engine: everything that it holds is freed, once no thread of it runs any more."""

import cython
from cython.cimports.libc.stdint import uint32_t
from cython.cimports.tidemq.engine.base.guarding import destroy_guard
from cython.cimports.tidemq.engine.base.message import release_message
from cython.cimports.tidemq.engine.base.system import (
    close,
    pthread_cond_destroy,
    pthread_mutex_destroy,
)
from cython.cimports.tidemq.engine.door.conversion import (
    free_event,
    free_listener,
)
from cython.cimports.tidemq.engine.index.levels import (
    LevelNode,
    node_at,
)
from cython.cimports.tidemq.engine.index.retained_index import (
    free_retained_index,
    new_retained_index,
)
from cython.cimports.tidemq.engine.index.subscriptions import (
    free_subscription_index,
    new_subscription_index,
)
from cython.cimports.tidemq.engine.journal.journal import free_section
from cython.cimports.tidemq.engine.link.mail import (
    post_outgoing,
    take_inbox,
)
from cython.cimports.tidemq.engine.queues.sessions import continue_ending, end_session
from cython.cimports.tidemq.engine.state.state import (
    Message,
    Reactor,
    Session,
)
from cython.cimports.tidemq.engine.turn.postman import settle_mail
from cython.cimports.tidemq.engine.turn.reactor import free_reactor
from cython.operator import dereference


def settle_all_mail(shared):
    """Delivers what reactors sent to others that had ended already: acknowledged, so it is kept."""
    index: cython.size_t
    each: cython.size_t
    waiting: cython.bint = True
    while waiting:
        waiting = False
        for index in range(shared.reactors.size()):
            r: cython.pointer[Reactor] = shared.reactors[index]
            take_inbox(r)
            for each in range(r.mail_at, r.reading.size()):
                waiting = True
                settle_mail(r, cython.address(r.reading[each]))
            r.reading.clear()
            r.mail_at = 0
            post_outgoing(r)


def empty_shared(shared):
    """Frees sessions, messages and what the reactors hold; the counters are left, to be read once more."""
    index: cython.size_t
    settle_all_mail(shared)
    for index in range(shared.events.size()):
        free_event(shared, shared.events[index])
    shared.events.clear()
    for index in range(shared.reactors.size()):
        r: cython.pointer[Reactor] = shared.reactors[index]
        if r.section != cython.NULL:  # what ends with the engine stays in the store
            free_section(r, r.section)
            r.section = cython.NULL
        while not r.sessions.empty():
            end_session(r, dereference(r.sessions.begin()).second)
    while not shared.registry.empty():
        s: cython.pointer[Session] = dereference(shared.registry.begin()).second
        end_session(shared.reactors[s.reactor], s)
    for index in range(shared.reactors.size()):
        continue_ending(shared.reactors[index], ~cython.cast(cython.size_t, 0))
    for index in range(shared.journal.size()):
        free_section(shared.reactors[shared.journal[index].reactor], shared.journal[index])
    shared.journal.clear()
    _free_retained(shared)
    free_subscription_index(shared.subscriptions)
    for index in range(shared.reactors.size()):
        free_reactor(shared.reactors[index])
    shared.subscriptions = new_subscription_index()
    shared.retained = new_retained_index()


def _free_retained(shared):
    node: uint32_t
    for node in range(shared.retained.topics.node_end):
        at: cython.pointer[LevelNode] = node_at(shared.retained.topics, node)
        if at.value != cython.NULL:
            release_message(cython.cast(cython.pointer[Message], at.value), shared.tally)
    free_retained_index(shared.retained)


def free_shared(shared):
    """Frees reactors, listeners, indexes and locks; `shared` itself is the caller's."""
    index: cython.size_t
    free_subscription_index(shared.subscriptions)
    free_retained_index(shared.retained)
    for index in range(shared.reactors.size()):
        r: cython.pointer[Reactor] = shared.reactors[index]
        del r
    shared.reactors.clear()
    for index in range(shared.listeners.size()):
        free_listener(shared.listeners[index])
    shared.listeners.clear()
    pthread_mutex_destroy(cython.address(shared.registry_lock))
    pthread_mutex_destroy(cython.address(shared.accept_lock))
    destroy_guard(cython.address(shared.guard))
    pthread_mutex_destroy(cython.address(shared.events_lock))
    pthread_mutex_destroy(cython.address(shared.journal_lock))
    pthread_cond_destroy(cython.address(shared.journal_ready))
    close(shared.event_wake)
    close(shared.reserve)
