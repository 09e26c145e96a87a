"""What somebody who looks after the broker can see of its engine: figures at once, clients by questions.

All methods belong to the façade's thread. Figures are read from where each reactor publishes them, or from
what may be read while it runs; no reactor notices.
"""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import int64_t
from cython.cimports.tidemq.engine.base.counters import (
    C_MESSAGES_RECEIVED,
    C_MESSAGES_SENT,
    C_TURNS,
    LIVE_CONNECTIONS,
    LIVE_SESSIONS,
)
from cython.cimports.tidemq.engine.base.engine_limits import EngineLimits
from cython.cimports.tidemq.engine.base.histograms import HISTOGRAM_BUCKETS
from cython.cimports.tidemq.engine.base.locks import lock, unlock
from cython.cimports.tidemq.engine.base.system import RELAXED, load_i64, load_int, store_i64, store_int
from cython.cimports.tidemq.engine.door.conversion import set_limits, string_of
from cython.cimports.tidemq.engine.door.engine import Engine
from cython.cimports.tidemq.engine.door.rosters import new_inquiry, new_roster
from cython.cimports.tidemq.engine.door.topic_rule_book import topic_rules_of
from cython.cimports.tidemq.engine.index.subscriptions import lock_shared, unlock_shared
from cython.cimports.tidemq.engine.index.topic_rules import (
    TopicRules,
    hold_topic_rules,
    release_topic_rules,
)
from cython.cimports.tidemq.engine.link.mail import new_letter, new_mail, post_directly
from cython.cimports.tidemq.engine.queues.memory_ceiling import memory_used
from cython.cimports.tidemq.engine.state.mail import (
    MAIL_INQUIRY,
    MAIL_ROSTER,
    MAIL_SUBSCRIBE,
    MAIL_TOPIC_RULES,
    Mail,
)
from cython.cimports.tidemq.engine.state.reactor import WATCHES_MAX, Common, Reactor, WatchCount

from tidemq.engine.base.histograms import NAMES
from tidemq.engine.door.figures import Histogram, Question, ReactorFigures
from tidemq.errors import UsageError
from tidemq.wire.topics import topic_filter_fault


@cython.cclass
class EngineView:
    """The figures and clients of an engine; of no use any more when that is closed (UsageError)."""

    def __cinit__(self, engine: Engine) -> None:
        self.engine = engine

    def histograms(self) -> dict:
        """By name, a `figures.Histogram`: the sum of all reactors."""
        self.engine._check_open()
        return {name: self._histogram(which) for which, name in enumerate(NAMES)}

    def _histogram(self, which):
        bucket: cython.int
        each: cython.size_t
        counts = []
        sum_ns: int64_t = 0
        for bucket in range(HISTOGRAM_BUCKETS):
            total: int64_t = 0
            for each in range(self.engine.common.reactors.size()):
                r: cython.pointer[Reactor] = self.engine.common.reactors[each]
                total += load_i64(cython.address(r.histograms[which].counts[bucket]), RELAXED)
            counts.append(total)
        for each in range(self.engine.common.reactors.size()):
            r = self.engine.common.reactors[each]
            sum_ns += load_i64(cython.address(r.histograms[which].sum_ns), RELAXED)
        return Histogram(tuple(counts), sum_ns)

    def reactors(self) -> list:
        """`figures.ReactorFigures` of each."""
        self.engine._check_open()
        return [self._reactor(index) for index in range(self.engine.common.reactors.size())]

    def _reactor(self, index):
        r: cython.pointer[Reactor] = self.engine.common.reactors[index]
        return ReactorFigures(
            connections=load_i64(cython.address(r.published[LIVE_CONNECTIONS]), RELAXED),
            sessions=load_i64(cython.address(r.published[LIVE_SESSIONS]), RELAXED),
            turns=load_i64(cython.address(r.published[C_TURNS]), RELAXED),
            messages_received=load_i64(cython.address(r.published[C_MESSAGES_RECEIVED]), RELAXED),
            messages_sent=load_i64(cython.address(r.published[C_MESSAGES_SENT]), RELAXED),
            inbox=load_int(cython.address(r.inbox_count), RELAXED),
            load=load_int(cython.address(r.load), RELAXED) / 100,
        )

    def listeners(self) -> dict:
        """Connections by the listener's name."""
        self.engine._check_open()
        index: cython.size_t
        found: dict[str, int] = {}
        for index in range(self.engine.common.listeners.size()):
            name = self.engine.common.listeners[index].name.decode()
            count: int64_t = load_i64(
                cython.address(self.engine.common.listeners[index].connection_count), RELAXED
            )
            found[name] = found.get(name, 0) + count
        return found

    def sessions(self) -> int:
        """Of clients, whether they are connected or not."""
        self.engine._check_open()
        return load_i64(cython.address(self.engine.common.session_count), RELAXED)

    def shared_groups(self) -> int:
        """Shared subscriptions that somebody has: filters with the name of a group."""
        self.engine._check_open()
        lock_shared(self.engine.common.subscriptions)
        count: cython.size_t = self.engine.common.subscriptions.groups_by_id.size()
        unlock_shared(self.engine.common.subscriptions)
        return count

    def memory(self) -> tuple:
        """Bytes that count against ``memory_bytes_max``, that limit, and whether it is passed."""
        self.engine._check_open()
        used: int64_t = memory_used(self.engine.common)
        passed: cython.bint = load_int(cython.address(self.engine.common.overloaded), RELAXED) != 0
        return used, self.engine.common.limits.memory_bytes_max, bool(passed)

    def limits(self) -> dict:
        """Those of ``limits.CHANGEABLE`` that are in force, by name, in the units of ``limits.Limits``."""
        self.engine._check_open()
        own: EngineLimits = self.engine.common.limits
        return {
            "subscriptions_max": own.subscriptions_max,
            "subscriptions_total_max": own.subscriptions_total_max,
            "session_expiry_s_max": own.session_expiry_s_max,
            "queued_messages_max": own.queued_messages_max,
            "queued_bytes_max": own.queued_bytes_max,
            "connections_max": own.connections_max,
            "sessions_max": own.sessions_max,
            "retained_messages_max": own.retained_messages_max,
            "memory_bytes_max": own.memory_bytes_max,
            "connect_timeout_s": own.connect_timeout_ms // 1000,
            "packet_s_max": own.packet_ms_max // 1000,
            "output_stalled_s_max": own.output_stalled_ms_max // 1000,
            "output_high_bytes": own.output_high_bytes,
            "output_bytes_max": own.output_bytes_max,
            "backpressure_s": own.backpressure_ms // 1000,
        }

    def change_limits(self, limits) -> None:
        """Has the engine follow those of ``limits.CHANGEABLE``. Each is one word, which a reactor reads when
        it needs it: it sees the old one or the new one.
        """
        self.engine._check_open()
        own: EngineLimits
        set_limits(cython.address(own), limits)
        common: cython.pointer[Common] = self.engine.common
        common.limits.subscriptions_max = own.subscriptions_max
        common.limits.subscriptions_total_max = own.subscriptions_total_max
        common.limits.session_expiry_s_max = own.session_expiry_s_max
        common.limits.queued_messages_max = own.queued_messages_max
        common.limits.queued_bytes_max = own.queued_bytes_max
        common.limits.connections_max = own.connections_max
        common.limits.sessions_max = own.sessions_max
        common.limits.retained_messages_max = own.retained_messages_max
        common.limits.memory_bytes_max = own.memory_bytes_max
        common.limits.connect_timeout_ms = own.connect_timeout_ms
        common.limits.packet_ms_max = own.packet_ms_max
        common.limits.output_stalled_ms_max = own.output_stalled_ms_max
        common.limits.output_high_bytes = own.output_high_bytes
        common.limits.output_bytes_max = own.output_bytes_max
        common.limits.backpressure_ms = own.backpressure_ms

    def change_topic_rules(self, rows) -> None:
        """The rules of topics, a `topic_rule_rows.TopicRuleRows`, that count from now on."""
        self.engine._check_open()
        index: cython.size_t
        common: cython.pointer[Common] = self.engine.common
        rules: cython.pointer[TopicRules] = topic_rules_of(rows, common.tally)
        for index in range(common.reactors.size()):
            hold_topic_rules(rules)
            if self.engine.started:
                mail: Mail = new_mail(MAIL_TOPIC_RULES)
                mail.pointer = rules
                post_directly(common.reactors[index], cython.address(mail))
            else:  # nobody knows a topic yet
                release_topic_rules(common.reactors[index].topic_rules, common.tally)
                common.reactors[index].topic_rules = rules
        release_topic_rules(rules, common.tally)
        self.engine._publish_tally()

    def watch(self, topic_filter: str, place: int) -> int:
        """From now on counts the messages on a filter, at a place below WATCHES_MAX that nobody has; gives
        the number of the receiver, for `end_watch`. UsageError for a filter that is none.
        """
        self.engine._check_open()
        self.engine._check_topic(topic_filter, 0, topic_filter_fault)
        if topic_filter.startswith(("$share/", "$exclusive/")):  # to count would be to take from somebody
            raise UsageError(f"{topic_filter!r}: accepted is the filter of topics that is behind that")
        if not 0 <= place < WATCHES_MAX:
            raise UsageError(f"there is no place {place} to count at")
        counted: cython.pointer[WatchCount] = cython.address(self.engine.common.watched[place])
        store_i64(cython.address(counted.messages), 0, RELAXED)
        store_i64(cython.address(counted.payload_bytes), 0, RELAXED)
        mail: Mail = new_mail(MAIL_SUBSCRIBE)
        self.engine.next_receiver += 1
        mail.number = self.engine.next_receiver
        mail.token = place + 1
        mail.letter = new_letter()
        mail.letter.text = string_of(topic_filter.encode())
        post_directly(self.engine.common.reactors[0], cython.address(mail))
        return self.engine.next_receiver

    def watched(self, place: int) -> tuple:
        """Messages that were counted there, and bytes of their payloads."""
        self.engine._check_open()
        counted: cython.pointer[WatchCount] = cython.address(self.engine.common.watched[place])
        messages: int64_t = load_i64(cython.address(counted.messages), RELAXED)
        return messages, load_i64(cython.address(counted.payload_bytes), RELAXED)

    def end_watch(self, receiver: int) -> None:
        """Counts no more."""
        self.engine.unsubscribe(receiver)

    def trace(self, client_id: str, address: str) -> None:
        """From now on reports what clients of this identifier, or from this address, send and get, if they
        connect; who is connected is told by an inquiry. Takes the place of another trace.
        """
        self.engine._check_open()
        common: cython.pointer[Common] = self.engine.common
        lock(cython.address(common.events_lock))
        common.trace_client = client_id.encode()
        common.trace_address = address.encode()
        unlock(cython.address(common.events_lock))
        self.engine.traces += 1
        store_int(cython.address(common.trace_number), self.engine.traces, RELAXED)

    def end_trace(self) -> None:
        """Nobody is traced any more."""
        self.engine._check_open()
        store_int(cython.address(self.engine.common.trace_number), 0, RELAXED)

    def ask(self, reactor: int, number: int, question) -> None:
        """Asks a reactor, by a `figures.Question` about its clients or a `figures.Inquiry`; a
        `figures.Roster` or `figures.Finding` with the number comes as an event. None comes any more when the
        engine stops.
        """
        self.engine._check_open()
        if not 0 <= reactor < self.engine.common.reactors.size():
            raise UsageError(f"there is no reactor {reactor}")
        about_clients: cython.bint = isinstance(question, Question)
        mail: Mail = new_mail(MAIL_ROSTER if about_clients else MAIL_INQUIRY)
        if about_clients:
            mail.pointer = new_roster(number, question)
        else:
            mail.pointer = new_inquiry(number, question)
        post_directly(self.engine.common.reactors[reactor], cython.address(mail))
