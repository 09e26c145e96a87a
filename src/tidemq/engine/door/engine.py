"""The façade of the data plane: the only door between Python and the reactors.

Commands go down as mail, events come up in batches; no Python object is made for a message unless somebody in
Python asked for it. All methods belong to one thread; only ``close`` blocks.
"""

from __future__ import annotations

import threading

import cython
from cython.cimports.libc.stdint import (
    int64_t,
    uint64_t,
)
from cython.cimports.libcpp.memory import (
    make_unique,
    unique_ptr,
)
from cython.cimports.libcpp.string import string
from cython.cimports.libcpp.string_view import string_view
from cython.cimports.libcpp.vector import vector
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds
from cython.cimports.tidemq.engine.base.clock import clock_ms
from cython.cimports.tidemq.engine.base.counters import COUNTER_COUNT
from cython.cimports.tidemq.engine.base.engine_limits import (
    FULL_DROP_NEWEST,
    FULL_DROP_OLDEST,
    FULL_REJECT,
    EngineLimits,
)
from cython.cimports.tidemq.engine.base.event import EVENT_STOPPED, Event
from cython.cimports.tidemq.engine.base.guarding import init_guard
from cython.cimports.tidemq.engine.base.listener import Listener
from cython.cimports.tidemq.engine.base.locks import lock, unlock
from cython.cimports.tidemq.engine.base.message import (
    Passage,
    empty_passage,
    new_message,
)
from cython.cimports.tidemq.engine.base.system import (
    ACQUIRE,
    EFD_CLOEXEC,
    EFD_NONBLOCK,
    RELAXED,
    eventfd,
    load_i64,
    load_u64,
    pthread_mutex_init,
    read,
    store_i64,
)
from cython.cimports.tidemq.engine.door.conversion import (
    event_of,
    free_event,
    new_listener,
    set_limits,
    string_of,
)
from cython.cimports.tidemq.engine.door.dismantling import empty_common, free_common
from cython.cimports.tidemq.engine.door.keeper_work import init_journal
from cython.cimports.tidemq.engine.door.rule_book import (
    letter_of,
    policy_of,
)
from cython.cimports.tidemq.engine.index.retained_index import lock_shared as lock_retained
from cython.cimports.tidemq.engine.index.retained_index import new_retained_index
from cython.cimports.tidemq.engine.index.retained_index import unlock_shared as unlock_retained
from cython.cimports.tidemq.engine.index.rules import (
    Policy,
    hold_policy,
    release_policy,
)
from cython.cimports.tidemq.engine.index.subscriptions import lock_shared as lock_subscriptions
from cython.cimports.tidemq.engine.index.subscriptions import new_subscription_index
from cython.cimports.tidemq.engine.index.subscriptions import unlock_shared as unlock_subscriptions
from cython.cimports.tidemq.engine.link.mail import (
    new_letter,
    new_mail,
    post_directly,
)
from cython.cimports.tidemq.engine.state.client import Session
from cython.cimports.tidemq.engine.state.handles import reactor_of
from cython.cimports.tidemq.engine.state.mail import (
    MAIL_ANSWER_AUTH,
    MAIL_ANSWER_CONNECT,
    MAIL_ANSWER_PUBLISH,
    MAIL_ANSWER_SUBSCRIBE,
    MAIL_DISCONNECT,
    MAIL_FED,
    MAIL_JUDGE,
    MAIL_PUBLISH,
    MAIL_REPLAYED,
    MAIL_REVOKE,
    MAIL_RULES,
    MAIL_STOP,
    MAIL_SUBSCRIBE,
    MAIL_UNSUBSCRIBE,
    Letter,
    Mail,
)
from cython.cimports.tidemq.engine.state.reactor import REACTORS_MAX, Common
from cython.cimports.tidemq.engine.state.wall_clock import read_wall_offset
from cython.cimports.tidemq.engine.turn.listening import add_listening
from cython.cimports.tidemq.engine.turn.postman import settle_mail
from cython.cimports.tidemq.engine.turn.reactor import (
    new_reactor,
    publish_tally,
    run_reactor,
)
from cython.cimports.tidemq.net.exhaustion import end_when_exhausted
from cython.cimports.tidemq.net.transport import ServerScheme
from cython.cimports.tidemq.wire.protocol import span_of

from tidemq.engine.base.counters import NAMES
from tidemq.engine.door.listeners import ListenerSettings, default_rates, prepare_socket
from tidemq.errors import UsageError
from tidemq.wire.faults import fault_text
from tidemq.wire.topics import topic_filter_fault, topic_name_fault

# what happens to a message for a queue that is full
QUEUE_FULL = {"drop_newest": FULL_DROP_NEWEST, "drop_oldest": FULL_DROP_OLDEST, "reject": FULL_REJECT}


@cython.cclass
class Engine:
    """The reactors, their sessions and messages.

    ``reactors``: 1 to 64. The ``ask_*`` and ``report_connections`` attributes say what the control plane
    wants to decide and to know; they are set before ``start``. ``queue_full``: what happens to a message for
    a queue that is full, "drop_newest", "drop_oldest" or "reject".
    """

    def __cinit__(self, limits, *, reactors: int, queue_full: str = "drop_newest") -> None:
        if not 1 <= reactors <= REACTORS_MAX:
            raise UsageError(f"reactors is {reactors}, must be 1 to {REACTORS_MAX}")
        own: EngineLimits
        set_limits(cython.address(own), limits)  # may raise: nothing is made yet
        end_when_exhausted()
        owner: unique_ptr[Common] = make_unique[Common]()
        self.common = owner.release()
        self.threads = []
        self.sockets = []
        self.schemes = []
        self.limits = limits
        self.final_counters = None
        self.next_receiver = 1 << 62
        self.common.limits = own
        self.common.subscriptions = new_subscription_index()
        self.common.retained = new_retained_index()
        pthread_mutex_init(cython.address(self.common.registry_lock), cython.NULL)
        pthread_mutex_init(cython.address(self.common.accept_lock), cython.NULL)
        init_guard(cython.address(self.common.guard))
        self.common.reserve = eventfd(0, EFD_CLOEXEC)
        pthread_mutex_init(cython.address(self.common.events_lock), cython.NULL)
        self.common.event_wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        self.common.wall_offset_ns = self.common.id_offset_ns = read_wall_offset()
        self.common.queue_full = QUEUE_FULL[queue_full]
        init_journal(self.common)
        index: cython.int
        for index in range(reactors):
            self.common.reactors.push_back(new_reactor(self.common, index))
        for index in range(reactors):
            self.common.reactors[index].outgoing.resize(reactors)

    def __dealloc__(self) -> None:
        # the threads hold a reference to the engine: when this runs, none is left
        if self.common != cython.NULL:
            if not self.closed:
                self._free()
            del self.common

    @property
    def ask_connect(self) -> bool:
        """Whether every CONNECT waits for ``answer_connect``."""
        return self.common.ask_connect

    @ask_connect.setter
    def ask_connect(self, value: bool) -> None:
        self.common.ask_connect = value

    @property
    def ask_subscribe(self) -> bool:
        """Whether every SUBSCRIBE waits for ``answer_subscribe``."""
        return self.common.ask_subscribe

    @ask_subscribe.setter
    def ask_subscribe(self, value: bool) -> None:
        self.common.ask_subscribe = value

    @property
    def ask_publish(self) -> bool:
        """Whether every PUBLISH waits for ``answer_publish``."""
        return self.common.ask_publish

    @ask_publish.setter
    def ask_publish(self, value: bool) -> None:
        self.common.ask_publish = value

    @property
    def report_connections(self) -> bool:
        """Whether every connection makes a Connected and a Disconnected event, and not only faults."""
        return self.common.report_connections

    @report_connections.setter
    def report_connections(self, value: bool) -> None:
        self.common.report_connections = value

    def listen(self, sockets, settings=None) -> int:
        """Takes clients from listening, non-blocking sockets: one for each reactor, or one for all of them.
        Before ``start``; the engine closes them. ``settings``: a ListenerSettings.

        Returns the listener's number.
        """
        if self.started:
            raise UsageError("listen comes before start")
        index: cython.size_t
        count: cython.size_t = self.common.reactors.size()
        alone: cython.bint = len(sockets) == count
        if not alone and len(sockets) != 1:
            raise UsageError(f"{len(sockets)} sockets for {count} reactors: one for each, or one for all")
        self.sockets.extend(sockets)
        settings = settings or ListenerSettings()
        rates = settings.rates or default_rates(self.limits)
        for each in sockets:
            prepare_socket(each, self.limits, rates)
        listener: cython.pointer[Listener] = new_listener(settings, rates)
        self.common.listeners.push_back(listener)
        self.schemes.append(settings.scheme)  # the terms are the scheme's
        for index in range(count):
            fd: cython.int = sockets[index if alone else 0].fileno()
            add_listening(self.common.reactors[index], fd, listener, alone)
        return len(self.schemes) - 1

    def replace_scheme(self, listener: int, scheme) -> None:
        """Wraps the connections that come in at a listener from now on in this way; those that are there stay
        as they are, handshakes that have begun as well.
        """
        self._check_open()
        own: ServerScheme = scheme
        at: cython.pointer[Listener] = self.common.listeners[listener]
        lock(cython.address(at.terms_lock))
        at.terms = cython.address(own.terms)
        unlock(cython.address(at.terms_lock))
        self.schemes[listener] = scheme

    def start(self) -> None:
        """Starts one thread per reactor."""
        if self.started:
            raise UsageError("the engine runs already; an engine starts once")
        self.started = True
        self.running = self.common.reactors.size()
        for index in range(self.common.reactors.size()):
            publish_tally(self.common.reactors[index])  # what was loaded counts before its first turn
            thread = threading.Thread(
                target=self._run, args=(index,), name=f"tidemq-reactor-{index}", daemon=True
            )
            self.threads.append(thread)
            thread.start()

    def _run(self, index: cython.int) -> None:
        with cython.nogil:
            run_reactor(self.common.reactors[index])

    def fileno(self) -> int:
        """A descriptor that is readable while events wait."""
        self._check_open()
        return self.common.event_wake

    def events(self) -> list:
        """Takes all waiting events, oldest first."""
        taken: vector[cython.pointer[Event]]
        count: uint64_t = 0
        index: cython.size_t
        result = []
        if self.closed:
            return result
        lock(cython.address(self.common.events_lock))
        taken.swap(self.common.events)
        read(self.common.event_wake, cython.address(count), 8)
        unlock(cython.address(self.common.events_lock))
        for index in range(taken.size()):
            if taken[index].kind == EVENT_STOPPED:
                holds(self.running > 0, b"engine: a reactor ends once")
                self.running -= 1
            if taken[index].kind != EVENT_STOPPED or self.running == 0:
                result.append(event_of(taken[index]))
            free_event(self.common, taken[index])
        self._publish_tally()
        return result

    def _publish_tally(self):
        """Shows the reactors what this thread has made and freed: they watch the memory ceiling."""
        index: cython.int
        for index in range(COUNTER_COUNT):
            store_i64(cython.address(self.common.published[index]), self.common.tally[index], RELAXED)

    def answer_connect(
        self,
        connection: int,
        reason: int,
        *,
        client_id: str | None = None,
        auth_data: bytes | None = None,
        reason_string: str = "",
        username: str | None = None,
        groups=(),
        rules=None,
    ) -> None:
        """Accepts (0), refuses (0x80 and above) or continues (0x18, with ``auth_data``) a ConnectRequest.

        ``client_id`` takes the place of the client's own; it must be given, as the request had it, to accept.
        ``username`` takes the place of the client's own too, None: it does not; ``groups``, without NUL, are
        those that rules may name. ``rules``, RuleRow, are of this client alone and asked before all others;
        None: it has none.
        """
        self._check_open()
        letter: cython.pointer[Letter] = letter_of(username, groups, rules, self.common.tally)
        self._publish_tally()
        mail: Mail = new_mail(MAIL_ANSWER_CONNECT)
        mail.reason = reason
        mail.letter = letter
        mail.letter.text = string_of((client_id or "").encode())
        mail.letter.data = string_of(reason_string.encode() if reason >= 0x80 else auth_data)
        self._answer(connection, cython.address(mail))

    def answer_auth(
        self,
        connection: int,
        reason: int,
        auth_data: bytes | None = None,
        *,
        username: str | None = None,
        groups=(),
        rules=None,
    ) -> None:
        """Answers an AuthRequest: 0 success, 0x18 another step, 0x80 and above refuses.

        ``username``, ``groups`` and ``rules``: as in ``answer_connect``; what is left out stays as it was.
        """
        self._check_open()
        letter: cython.pointer[Letter] = letter_of(username, groups, rules, self.common.tally)
        self._publish_tally()
        mail: Mail = new_mail(MAIL_ANSWER_AUTH)
        mail.reason = reason
        mail.letter = letter
        mail.letter.data = string_of(auth_data)
        self._answer(connection, cython.address(mail))

    def answer_subscribe(
        self, connection: int, reasons, reason_string: str = "", starts: bytes = b""
    ) -> None:
        """Answers a SubscribeRequest: for each filter 0 to allow, or the reason code to refuse with;
        ``reason_string``: why, for the client. ``starts``: of each filter below ``$stream/`` that is allowed
        the QoS (1 byte), and of the stream epoch and first offset (8 bytes each).
        """
        self._check_open()
        mail: Mail = new_mail(MAIL_ANSWER_SUBSCRIBE)
        mail.letter = new_letter()
        mail.letter.data = string_of(bytes(reasons))
        mail.letter.text = string_of(reason_string.encode() if reason_string else None)
        mail.letter.starts = string_of(starts)
        self._answer(connection, cython.address(mail))

    def answer_publish(self, connection: int, reason: int, *, ttl_s: float = 0) -> None:
        """Answers a PublishRequest: 0 routes the message, 0x80 and above refuses it with that code.

        For ``ttl_s`` seconds the engine may say the same, without a request, to this client's messages to the
        topic with this QoS and retain; it forgets answers where there are many.
        """
        self._check_open()
        mail: Mail = new_mail(MAIL_ANSWER_PUBLISH)
        mail.reason = reason
        mail.token = int(ttl_s * 1000)
        self._answer(connection, cython.address(mail))

    def set_rules(self, rows) -> None:
        """The rules, `RuleRow` in the order in which they are asked, that clients are held to from now on.

        Without a call everything is allowed; with one, what no rule speaks of is refused. What is subscribed
        to already and is not allowed ends; a Revoked event tells of each client that has lost some.
        """
        self._check_open()
        index: cython.size_t
        policy: cython.pointer[Policy] = policy_of(rows, self.common.tally)
        for index in range(self.common.reactors.size()):
            hold_policy(policy)
            if self.started:
                mail: Mail = new_mail(MAIL_RULES)
                mail.pointer = policy
                post_directly(self.common.reactors[index], cython.address(mail))
            else:
                release_policy(self.common.reactors[index].policy, self.common.tally)
                self.common.reactors[index].policy = policy
        release_policy(policy, self.common.tally)
        self._publish_tally()

    def _answer(self, connection, mail):
        handle: uint64_t = connection
        mail.number = handle
        if reactor_of(handle) >= self.common.reactors.size():
            settle_mail(self.common.reactors[0], mail)
            raise UsageError(f"{connection} is not the number of a connection")
        post_directly(self.common.reactors[reactor_of(handle)], mail)

    def _check_open(self):
        if self.closed:
            raise UsageError("the engine is closed")

    def _check_topic(self, text, qos, check):
        if not 0 <= qos <= 2:
            raise UsageError(f"qos is {qos}, must be 0, 1 or 2")
        if len(text.encode()) > self.common.limits.topic_bytes_max:
            raise UsageError(
                f"{text[:40]!r}... is longer than topic_bytes_max, {self.common.limits.topic_bytes_max}"
            )
        fault = check(text, self.common.limits.topic_levels_max)
        if fault:
            raise UsageError(f"{text!r}: {fault_text(fault)}")

    def judge(self, connection: int, filters) -> None:
        """Asks what the rules say of these filters of topics, for a client: a Judged event answers."""
        self._send(connection, MAIL_JUDGE, None, b"".join([text.encode() + b"\0" for text in filters]), 0)

    def deliver(self, connection: int, packets: bytes, messages: int) -> None:
        """Sends a client encoded QoS 0 PUBLISH packets, ``messages`` of them, that no subscription led to.

        One Delivered event answers; before it comes, the connection is not to be given more.
        """
        self._send(connection, MAIL_REPLAYED, None, packets, messages)

    def feed(self, connection: int, topic_filter: str, messages: bytes, end: int) -> None:
        """Brings a replay at QoS 1 messages of the stream, all that it has before the offset ``end``: for
        each offset (8 bytes), sizes of topic, properties and payload (4 each), then these.

        A Fed event answers; before it comes, the replay is not to be given more.
        """
        self._send(connection, MAIL_FED, topic_filter.encode(), messages, end)

    def revoke_replay(self, connection: int, topic_filter: str) -> None:
        """Ends a replay at QoS 1 that a session has and may have no more."""
        self._send(connection, MAIL_REVOKE, topic_filter.encode(), None, 0)

    def _send(self, connection, kind, text, data, token):
        self._check_open()
        mail: Mail = new_mail(kind)
        mail.token = token
        mail.letter = new_letter()
        mail.letter.text = string_of(text)
        mail.letter.data = string_of(data)
        self._answer(connection, cython.address(mail))

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        properties: bytes = b"",
        message_expiry_s: int | None = None,
    ) -> None:
        """Publishes as the broker itself. ``properties``: encoded forwardable 5.0 properties, without a
        length.

        Raises UsageError for what a client could not publish either.
        """
        self._check_open()
        self._check_topic(topic, qos, topic_name_fault)
        topic_bytes = topic.encode()
        payload = bytes(payload)
        if len(topic_bytes) + len(payload) + len(properties) + 16 > self.common.limits.packet_bytes_max:
            raise UsageError(
                f"the message is larger than packet_bytes_max, {self.common.limits.packet_bytes_max}"
            )
        passage: Passage
        empty_passage(cython.address(passage))
        passage.topic = span_of(topic_bytes)
        passage.payload = span_of(payload)
        passage.properties = span_of(properties)
        passage.qos = qos
        passage.retain = retain
        if message_expiry_s is not None:
            if not 0 <= message_expiry_s <= 0xFFFFFFFF:
                raise UsageError(f"message_expiry_s is {message_expiry_s}, must be 0 to 4294967295")
            passage.expires_ms = clock_ms() + cython.cast(int64_t, message_expiry_s) * 1000
        mail: Mail = new_mail(MAIL_PUBLISH)
        mail.message = new_message(cython.address(passage), self.common.tally)
        self._publish_tally()
        post_directly(self.common.reactors[0], cython.address(mail))

    def subscribe(self, topic_filter: str, qos: int = 2) -> int:
        """A receiver of this program; its messages come as Received events with the number returned."""
        self._check_open()
        self._check_topic(topic_filter, qos, topic_filter_fault)
        mail: Mail = new_mail(MAIL_SUBSCRIBE)
        self.next_receiver += 1
        mail.number = self.next_receiver
        mail.reason = qos
        mail.letter = new_letter()
        mail.letter.text = string_of(topic_filter.encode())
        post_directly(self.common.reactors[0], cython.address(mail))
        return self.next_receiver

    def unsubscribe(self, receiver: int) -> None:
        """Ends a receiver; events of it may still be on their way."""
        self._check_open()
        mail: Mail = new_mail(MAIL_UNSUBSCRIBE)
        mail.number = receiver
        post_directly(self.common.reactors[0], cython.address(mail))

    def disconnect(self, client_id: str, reason: int) -> bool:
        """Ends a client's connection; a 5.0 client is told the reason code. False: it has none now."""
        self._check_open()
        named: string = client_id.encode()
        name: string_view = string_view(named.data(), named.size())
        online: cython.bint = False
        lock(cython.address(self.common.registry_lock))
        if self.common.registry.count(name):
            # a session that is on its way to another reactor: its client waits there
            session: cython.pointer[Session] = self.common.registry[name]
            online = (
                session.moving
                or load_u64(
                    cython.cast(cython.pointer[uint64_t], cython.address(session.connection)), ACQUIRE
                )
                != 0
            )
        unlock(cython.address(self.common.registry_lock))
        if not online:
            return False
        mail: Mail = new_mail(MAIL_DISCONNECT)
        mail.reason = reason
        mail.letter = new_letter()
        mail.letter.text = string_of(client_id.encode())
        post_directly(self.common.reactors[0], cython.address(mail))
        return True

    def counters(self) -> dict:
        """All counters by name, summed over the reactors, as they were at the end of their last turns."""
        if self.final_counters is not None:
            return dict(self.final_counters)
        result = {}
        index: cython.int
        each: cython.size_t
        for index in range(COUNTER_COUNT):
            total: int64_t = self.common.tally[index]
            for each in range(self.common.reactors.size()):
                total += load_i64(cython.address(self.common.reactors[each].published[index]), RELAXED)
            result[NAMES[index]] = total
        lock_retained(self.common.retained)
        result["retained"] = self.common.retained.count
        unlock_retained(self.common.retained)
        lock_subscriptions(self.common.subscriptions)
        result["subscriptions"] = self.common.subscriptions.count
        unlock_subscriptions(self.common.subscriptions)
        return result

    def live_objects(self) -> dict:
        """How many of each kind exist: all zero after ``close``, or something has leaked."""
        return {
            name: value
            for name, value in self.counters().items()
            if name.startswith(("live_", "memory_")) or name in ("retained", "subscriptions")
        }

    def stop(self) -> None:
        """Says goodbye to all clients; the reactors end after their last writes, then comes Stopped."""
        index: cython.uint
        if self.stopped or not self.started:
            return
        self.stopped = True
        for index in range(self.common.reactors.size()):
            mail: Mail = new_mail(MAIL_STOP)
            post_directly(self.common.reactors[index], cython.address(mail))

    def join(self) -> None:
        """Waits for the reactors' threads to end; after ``stop``."""
        for thread in self.threads:
            thread.join()

    def close(self) -> None:
        """Stops, waits for the threads and frees everything. May be called again."""
        if self.closed:
            return
        self.stop()
        self.join()
        for listener in self.sockets:
            listener.close()
        self.threads = []
        self._free()
        self.closed = True

    def _free(self):
        """Frees sessions, messages and reactors; no thread runs any more."""
        empty_common(self.common)
        self.final_counters = self.counters()
        if ASSERTS:
            holds(not any(self.live_objects().values()), b"engine: what was made has been freed")
        free_common(self.common)
