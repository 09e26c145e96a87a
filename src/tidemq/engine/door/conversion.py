"""What passes between Python's objects and the engine's structs: events up, strings and limits down.

Needs the GIL; called by the façade only.
"""

from __future__ import annotations

import os

import cython
from cython.cimports.libc.stdint import uint8_t
from cython.cimports.libc.string import memset
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.event import (
    EVENT_ACKNOWLEDGED,
    EVENT_AUTH,
    EVENT_CONNECT,
    EVENT_CONNECTED,
    EVENT_DELIVERED,
    EVENT_DISCONNECTED,
    EVENT_DROPPED,
    EVENT_FED,
    EVENT_HELD,
    EVENT_INQUIRY,
    EVENT_JUDGED,
    EVENT_PACKET,
    EVENT_PUBLISH,
    EVENT_RECEIVED,
    EVENT_REPLAY,
    EVENT_REVOKED,
    EVENT_ROSTER,
    EVENT_SESSION,
    EVENT_SPAN,
    EVENT_SUBSCRIBE,
    EVENT_UNSUBSCRIBE,
)
from cython.cimports.tidemq.engine.base.listener import Listener
from cython.cimports.tidemq.engine.base.message import payload_of, properties_of, release_message, topic_of
from cython.cimports.tidemq.engine.base.system import pthread_mutex_destroy, pthread_mutex_init
from cython.cimports.tidemq.engine.door.rosters import finding_of, roster_of
from cython.cimports.tidemq.net.transport import ServerScheme
from cython.cimports.tidemq.wire.packets import (
    Connect,
    Subscribe,
    next_filter,
    parse_connect,
    parse_subscribe,
)
from cython.cimports.tidemq.wire.properties import has_property
from cython.cimports.tidemq.wire.protocol import (
    FAULT_NONE,
    PROP_AUTH_DATA,
    PROP_AUTH_METHOD,
    PROP_SUBSCRIPTION_ID,
    SUBSCRIBE,
    Fault,
    Span,
    bytes_of,
)

from tidemq.engine.base.counters import NAMES
from tidemq.engine.door import events as up
from tidemq.wire.property_blocks import decode_properties


def text_of(span):
    """A copy of a view of UTF-8 as a str."""
    return bytes_of(span).decode()


def string_of(data):
    """A C++ string of bytes, or NULL for None."""
    if data is None:
        return cython.NULL
    owner: unique_ptr[string] = make_unique[string]()
    made: cython.pointer[string] = owner.release()
    made[0] = cython.cast(bytes, data)
    return made


def event_of(event):
    """The Python event that the engine's event becomes."""
    if event.kind == EVENT_CONNECT:
        return _connect_request(event)
    if event.kind == EVENT_AUTH:
        return up.AuthRequest(
            event.connection,
            event.client_id.decode(),
            event.reason,
            event.text.decode(),
            bytes(event.data) if event.flag else None,
            event.listener.decode(),
            event.username.decode() if event.has_username else None,
            event.peer.decode(),
        )
    if event.kind == EVENT_SESSION:
        return _session_request(event)
    if event.kind == EVENT_SUBSCRIBE:
        return _subscribe_request(event)
    if event.kind == EVENT_UNSUBSCRIBE:
        return up.Unsubscribed(event.connection, event.text.decode())
    if event.kind == EVENT_REPLAY:
        return _replaying(event)
    if event.kind == EVENT_FED:
        return up.Fed(event.connection, event.text.decode(), bool(event.flag))
    if event.kind == EVENT_JUDGED:
        return up.Judged(event.connection, bytes(event.data))
    if event.kind == EVENT_DELIVERED:
        return up.Delivered(event.connection, bool(event.flag))
    if event.kind == EVENT_PUBLISH:
        return up.PublishRequest(
            event.connection,
            event.client_id.decode(),
            event.username.decode() if event.has_username else None,
            event.text.decode(),
            bytes(event.data),
            event.reason,
            bool(event.flag),
        )
    if event.kind == EVENT_HELD:
        return _held(event)
    if event.kind == EVENT_ACKNOWLEDGED:
        return _acknowledged(event)
    if event.kind == EVENT_CONNECTED:
        return up.Connected(
            event.connection,
            event.client_id.decode(),
            event.peer.decode(),
            event.version,
            bool(event.flag),
            event.listener.decode(),
            event.username.decode() if event.has_username else None,
        )
    if event.kind == EVENT_DISCONNECTED:
        return _disconnected(event)
    if event.kind == EVENT_RECEIVED:
        return _received(event)
    if event.kind == EVENT_DROPPED:
        return up.Dropped(event.client_id.decode(), NAMES[event.reason], event.packet_bytes_max)
    if event.kind == EVENT_PACKET:
        return _traced(event)
    if event.kind == EVENT_SPAN:
        return _spanned(event)
    if event.kind == EVENT_ROSTER:
        return roster_of(event.roster)
    if event.kind == EVENT_INQUIRY:
        return finding_of(event.inquiry)
    if event.kind == EVENT_REVOKED:
        return up.Revoked(event.client_id.decode(), event.text.decode(), event.packet_bytes_max)
    return up.Stopped()


def _disconnected(event):
    return up.Disconnected(
        event.connection,
        event.client_id.decode(),
        event.peer.decode(),
        event.reason,
        event.fault,
        event.text.decode(),
        event.listener.decode(),
        event.username.decode() if event.has_username else None,
        event.offset / 1e9,
        event.epoch,
    )


def _traced(event):
    return up.Traced(
        event.connection,
        event.client_id.decode(),
        event.peer.decode(),
        event.version,
        bool(event.flag),
        bytes(event.packet),
        event.packet_bytes_max,
        event.reason,
        event.fault,
    )


def _spanned(event):
    return up.Spanned(
        up.SPAN_STEPS[event.version],
        event.data.decode(),
        event.packet.decode(),
        event.client_id.decode(),
        event.text.decode(),
        event.fault,
        event.packet_bytes_max,
        event.reason,
        event.offset,
        event.epoch,
    )


def _connect_request(event):
    connect: Connect
    packet: cython.pointer[uint8_t] = cython.cast(cython.pointer[uint8_t], event.packet.data())
    memset(cython.address(connect), 0, cython.sizeof(Connect))
    fault: Fault = parse_connect(packet[0], packet + 1, event.packet.size() - 1, cython.address(connect))
    holds(fault == FAULT_NONE, b"conversion: a CONNECT that is decided on is whole")
    method = data = None
    if connect.version == 5:
        if has_property(cython.address(connect.properties), PROP_AUTH_METHOD):
            method = text_of(connect.properties.auth_method)
        if has_property(cython.address(connect.properties), PROP_AUTH_DATA):
            data = bytes_of(connect.properties.auth_data)
    return up.ConnectRequest(
        event.connection,
        text_of(connect.client_id),
        text_of(connect.username) if connect.has_username else None,
        bytes_of(connect.password) if connect.has_password else None,
        event.peer.decode(),
        connect.version,
        bool(connect.clean_start),
        connect.keep_alive_s,
        text_of(connect.will_topic) if connect.has_will else None,
        method,
        data,
        bytes(event.data) if event.flag else None,
        event.listener.decode(),
    )


def _received(event):
    return up.Received(
        event.connection,
        text_of(topic_of(event.message)),
        bytes_of(payload_of(event.message)),
        event.message.qos,
        bool(event.message.retain),
        bytes_of(properties_of(event.message)),
    )


def _acknowledged(event):
    return up.Acknowledged(
        event.client_id.decode(),
        text_of(topic_of(event.message)),
        bytes_of(payload_of(event.message)),
        event.reason,
    )


def _held(event):
    if event.message != cython.NULL:
        return up.HeldMessage(
            0,
            0,
            event.client_id.decode(),
            None,
            text_of(topic_of(event.message)),
            bytes_of(payload_of(event.message)),
            event.message.qos,
            bool(event.message.retain),
            bytes_of(properties_of(event.message)),
            event.offset if event.offset >= 0 else None,
        )
    return up.HeldMessage(
        event.connection,
        event.offset,
        event.client_id.decode(),
        event.username.decode() if event.has_username else None,
        event.text.decode(),
        bytes(event.data),
        event.reason,
        bool(event.flag),
        bytes(event.packet),
    )


def _replaying(event):
    request = up.SubscribeRequest(
        event.connection,
        event.client_id.decode(),
        event.username.decode() if event.has_username else None,
        ((event.text.decode(), event.reason),),
        event.version,
        event.packet_bytes_max,
        event.number,
    )
    return up.Replaying(request, event.epoch, event.offset, bool(event.flag))


def _session_request(event):
    return up.SessionRequest(
        event.connection, event.client_id.decode(), event.version, bool(event.flag), event.number
    )


def _subscribe_request(event):
    packet: Subscribe
    data: cython.pointer[uint8_t] = cython.cast(cython.pointer[uint8_t], event.packet.data())
    filter: Span
    options: uint8_t
    size: cython.size_t = event.packet.size() - 1
    fault: Fault = parse_subscribe(data[0], data + 1, size, event.version, 65535, cython.address(packet))
    holds(fault == FAULT_NONE, b"conversion: a SUBSCRIBE that is decided on is whole")
    rest: Span = packet.filters
    filters = []
    while next_filter(cython.address(rest), True, cython.address(filter), cython.address(options)):
        filters.append((text_of(filter), options & 3))
    subscription_id = 0
    if event.version == 5 and has_property(cython.address(packet.properties), PROP_SUBSCRIPTION_ID):
        subscription_id = packet.properties.subscription_id
    pairs = ()
    if event.version == 5 and packet.properties.user_count:
        pairs = decode_properties(bytes_of(packet.properties.raw), SUBSCRIBE).user_properties
    return up.SubscribeRequest(
        event.connection,
        event.client_id.decode(),
        event.username.decode() if event.has_username else None,
        tuple(filters),
        event.version,
        event.packet_bytes_max,
        subscription_id,
        bytes(event.data),
        pairs,
    )


def free_event(common, event):
    """Frees an event, and lets go of its message."""
    if event.message != cython.NULL:
        release_message(event.message, common.tally)
    del event.roster
    del event.inquiry
    del event


def _memory_ceiling(wanted: int) -> int:
    if wanted:
        return wanted
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4


def set_limits(own, limits):
    """Copies `limits.Limits` into the engine's units."""
    own.packet_bytes_max = limits.packet_bytes_max
    own.payload_bytes_max = limits.payload_bytes_max
    own.topic_bytes_max = limits.topic_bytes_max
    own.topic_levels_max = limits.topic_levels_max
    own.wildcard_ways_max = limits.wildcard_ways_max
    own.client_id_bytes_max = limits.client_id_bytes_max
    own.keep_alive_s_max = limits.keep_alive_s_max
    own.topic_alias_max = limits.topic_alias_max
    own.receive_max = limits.receive_max
    own.inflight_max = limits.inflight_max
    own.ack_timeout_s = limits.ack_timeout_s
    own.subscriptions_max = limits.subscriptions_max
    own.subscriptions_total_max = limits.subscriptions_total_max
    own.session_expiry_s_max = limits.session_expiry_s_max
    own.queued_messages_max = limits.queued_messages_max
    own.queued_bytes_max = limits.queued_bytes_max
    own.connections_max = limits.connections_max
    own.sessions_max = limits.sessions_max
    own.retained_messages_max = limits.retained_messages_max
    own.memory_bytes_max = _memory_ceiling(limits.memory_bytes_max)
    own.connect_timeout_ms = limits.connect_timeout_s * 1000
    own.packet_ms_max = limits.packet_s_max * 1000
    own.output_stalled_ms_max = limits.output_stalled_s_max * 1000
    own.flapping_connects_max = limits.flapping_connects_max
    own.flapping_window_ms = limits.flapping_window_s * 1000
    own.flapping_ban_ms = limits.flapping_ban_s * 1000
    own.flapping_clients_max = limits.flapping_clients_max
    own.output_high_bytes = limits.output_high_bytes
    own.output_bytes_max = limits.output_bytes_max
    own.backpressure_ms = limits.backpressure_s * 1000
    own.shutdown_ms = limits.shutdown_s * 1000
    own.event_queue_max = limits.event_queue_max
    own.spans_per_s = limits.spans_per_s
    own.inbox_messages_max = limits.inbox_messages_max
    own.node_bytes_max = limits.node_bytes_max
    own.cache_topics_max = limits.cache_topics_max
    own.cache_receivers_max = limits.cache_receivers_max
    own.queue_window_messages = limits.queue_window_messages
    own.retained_ttl_ms = limits.retained_ttl_s * 1000


def new_listener(settings, rates):
    """A listener with these `listeners.ListenerSettings`; the scheme lives as long, or until it is replaced.

    ``rates``: `listeners.ListenerRates`.
    """
    owner: unique_ptr[Listener] = make_unique[Listener]()
    listener: cython.pointer[Listener] = owner.release()
    pthread_mutex_init(cython.address(listener.terms_lock), cython.NULL)
    listener.name = settings.name.encode()
    for version in settings.versions:
        listener.versions |= 1 << version
    listener.asks = settings.asks
    listener.local_only = settings.local_only
    listener.qos_max = settings.qos_max
    listener.retain_available = settings.retain_available
    listener.client_id_required = settings.client_id_required
    listener.connections_max = settings.connections_max
    listener.connections_per_address_max = rates.connections_per_address_max
    listener.rates.client_messages = rates.client_messages_per_s
    listener.rates.client_bytes = rates.client_bytes_per_s
    listener.rates.messages = rates.listener_messages_per_s
    listener.rates.bytes = rates.listener_bytes_per_s
    listener.rates.connects = rates.connects_per_s
    listener.rates.limited = bool(
        rates.client_messages_per_s
        or rates.client_bytes_per_s
        or rates.listener_messages_per_s
        or rates.listener_bytes_per_s
    )
    if settings.scheme is not None:
        scheme: ServerScheme = settings.scheme
        listener.proxied = scheme.terms.proxied
        listener.secure = scheme.terms.tls != cython.NULL
        listener.terms = cython.address(scheme.terms)
    return listener


def free_listener(listener):
    """Frees it; no connection of it is left."""
    holds(listener.connection_count == 0, b"conversion: a listener that is freed has no connections")
    pthread_mutex_destroy(cython.address(listener.terms_lock))
    del listener
