"""The end of an engine: everything that it holds is freed, once no thread of it runs any more."""

import cython
from cython.cimports.libc.stdint import uint32_t
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.guarding import destroy_guard
from cython.cimports.tidemq.engine.base.message import Message, release_message
from cython.cimports.tidemq.engine.base.system import (
    RELAXED,
    close,
    load_i64,
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
from cython.cimports.tidemq.engine.state.client import Session
from cython.cimports.tidemq.engine.state.reactor import Reactor
from cython.cimports.tidemq.engine.turn.postman import settle_mail
from cython.cimports.tidemq.engine.turn.reactor import free_reactor
from cython.operator import dereference


def settle_all_mail(common):
    """Delivers what reactors sent to others that had ended already: acknowledged, so it is kept."""
    index: cython.size_t
    each: cython.size_t
    waiting: cython.bint = True
    while waiting:
        waiting = False
        for index in range(common.reactors.size()):
            r: cython.pointer[Reactor] = common.reactors[index]
            take_inbox(r)
            for each in range(r.mail_at, r.reading.size()):
                waiting = True
                settle_mail(r, cython.address(r.reading[each]))
            r.reading.clear()
            r.mail_at = 0
            post_outgoing(r)


def empty_common(common):
    """Frees sessions, messages and what the reactors hold; the counters are left, to be read once more."""
    index: cython.size_t
    settle_all_mail(common)
    holds(
        load_i64(cython.address(common.connection_count), RELAXED) == 0,
        b"dismantling: no connection outlives its reactor",
    )
    for index in range(common.events.size()):
        free_event(common, common.events[index])
    common.events.clear()
    for index in range(common.reactors.size()):
        r: cython.pointer[Reactor] = common.reactors[index]
        if r.section != cython.NULL:  # what ends with the engine stays in the store
            free_section(r, r.section)
            r.section = cython.NULL
        while not r.sessions.empty():
            end_session(r, dereference(r.sessions.begin()).second)
    while not common.registry.empty():
        s: cython.pointer[Session] = dereference(common.registry.begin()).second
        end_session(common.reactors[s.reactor], s)
    for index in range(common.reactors.size()):
        continue_ending(common.reactors[index], ~cython.cast(cython.size_t, 0))
    holds(
        load_i64(cython.address(common.session_count), RELAXED) == 0,
        b"dismantling: sessions that have ended are not counted",
    )
    holds(
        load_i64(cython.address(common.subscription_count), RELAXED) == 0,
        b"dismantling: subscriptions that have ended are not counted",
    )
    for index in range(common.journal.size()):
        free_section(common.reactors[common.journal[index].reactor], common.journal[index])
    common.journal.clear()
    _free_retained(common)
    free_subscription_index(common.subscriptions)
    for index in range(common.reactors.size()):
        free_reactor(common.reactors[index])
    common.subscriptions = new_subscription_index()
    common.retained = new_retained_index()


def _free_retained(common):
    node: uint32_t
    for node in range(common.retained.topics.node_end):
        at: cython.pointer[LevelNode] = node_at(common.retained.topics, node)
        if at.value != cython.NULL:
            release_message(cython.cast(cython.pointer[Message], at.value), common.tally)
    free_retained_index(common.retained)


def free_common(common):
    """Frees reactors, listeners, indexes and locks; `common` itself is the caller's."""
    index: cython.size_t
    free_subscription_index(common.subscriptions)
    free_retained_index(common.retained)
    for index in range(common.reactors.size()):
        r: cython.pointer[Reactor] = common.reactors[index]
        del r
    common.reactors.clear()
    for index in range(common.listeners.size()):
        free_listener(common.listeners[index])
    common.listeners.clear()
    pthread_mutex_destroy(cython.address(common.registry_lock))
    pthread_mutex_destroy(cython.address(common.accept_lock))
    destroy_guard(cython.address(common.guard))
    pthread_mutex_destroy(cython.address(common.events_lock))
    pthread_mutex_destroy(cython.address(common.journal_lock))
    pthread_cond_destroy(cython.address(common.journal_ready))
    close(common.event_wake)
    close(common.reserve)
