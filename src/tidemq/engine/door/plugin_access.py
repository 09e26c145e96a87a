"""Which messages plugins want, and what they decide on them: one object for each engine."""

import cython
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libcpp.vector import vector
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.system import RELAXED, store_u8
from cython.cimports.tidemq.engine.door.conversion import string_of
from cython.cimports.tidemq.engine.door.engine import Engine
from cython.cimports.tidemq.engine.index.subscribers import PLAIN, PLUGIN_REACTOR, Subscription
from cython.cimports.tidemq.engine.index.subscriptions import (
    lock_exclusive,
    put_subscription,
    remove_subscription,
    unlock_exclusive,
)
from cython.cimports.tidemq.engine.link.mail import new_letter, new_mail, post_all
from cython.cimports.tidemq.engine.state.handles import reactor_of
from cython.cimports.tidemq.engine.state.mail import MAIL_ANSWER_HELD, Mail
from cython.cimports.tidemq.engine.state.reactor import Common
from cython.cimports.tidemq.engine.state.routing import PLUGIN_DELIVERED, PLUGIN_PUBLISH
from cython.cimports.tidemq.wire.protocol import Span, span_of

from tidemq.errors import UsageError
from tidemq.wire.topics import topic_filter_fault


@cython.cclass
class PluginAccess:
    """What the control plane tells an engine for its plugins."""

    def __cinit__(self, engine: Engine) -> None:
        self.engine = engine
        self.filters = {}

    def set_filters(self, publish, delivered) -> None:
        """What plugins want from now on, in place of what they wanted before: clients' messages on the
        filters ``publish``, each a HeldMessage and waiting for its answer, and acknowledgements of those on
        ``delivered`` (QoS 1 and 2), each an Acknowledged event. UsageError for a filter that is malformed or
        shared.
        """
        self.engine._check_open()
        common: cython.pointer[Common] = self.engine.common
        wanted: dict = {}
        for bit, filters in ((PLUGIN_PUBLISH, publish), (PLUGIN_DELIVERED, delivered)):
            for text in filters:
                self.engine._check_topic(text, 0, topic_filter_fault)
                if text.startswith("$share/"):
                    raise UsageError(f"{text!r}: a plugin takes no shared subscription")
                wanted[text.encode()] = wanted.get(text.encode(), 0) | bit
        mark: cython.p_void = cython.address(common.plugins)
        subscription: Subscription
        removed: cython.bint = True
        lock_exclusive(common.subscriptions)
        for text in self.filters:
            if text not in wanted:
                removed = removed and remove_subscription(
                    common.subscriptions, span_of(text), Span(cython.NULL, 0), mark
                )
        for text in wanted:
            bits: uint32_t = wanted[text]
            subscription = Subscription(mark, bits, PLUGIN_REACTOR, 0, PLAIN)
            put_subscription(common.subscriptions, span_of(text), Span(cython.NULL, 0), subscription)
        unlock_exclusive(common.subscriptions)
        holds(removed, b"plugin access: a filter that plugins want no more was in the index")
        self.filters = wanted
        store_u8(cython.address(common.plugins), len(wanted) > 0, RELAXED)

    def answer(self, answers) -> None:
        """Answers HeldMessages: connection, number, reason and packet of each. Reason 0: the message goes on,
        or that of the packet, an encoded 5.0 PUBLISH, in its place, at the QoS that it came with; below 0x80:
        it is acknowledged with that code and goes to nobody; from there on: it is refused.
        """
        mails: vector[vector[Mail]]
        index: cython.size_t
        self.engine._check_open()
        common: cython.pointer[Common] = self.engine.common
        mails.resize(common.reactors.size())
        for connection, number, reason, packet in answers:
            handle: uint64_t = connection
            if reactor_of(handle) >= mails.size():
                raise UsageError(f"{connection} is not the number of a connection")
            mail: Mail = new_mail(MAIL_ANSWER_HELD)
            mail.number = handle
            mail.token = number
            mail.reason = reason
            if packet is not None:
                mail.letter = new_letter()
                mail.letter.data = string_of(packet)
            mails[reactor_of(handle)].push_back(mail)
        for index in range(mails.size()):
            post_all(common.reactors[index], cython.address(mails[index]))
