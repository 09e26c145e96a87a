"""From CONNECT to CONNACK: the decision, the session, takeover, and what the client has asked for.

A client whose session lives on another reactor is sent there, connection and CONNECT, so a session never
moves for a client that comes back.
"""

import cython
from cython.cimports.libc.stdint import (
    uint8_t,
    uint16_t,
    uint32_t,
    uint64_t,
)
from cython.cimports.libc.string import memset
from cython.cimports.libcpp.memory import (
    make_unique,
    unique_ptr,
)
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds, may_touch
from cython.cimports.tidemq.engine.base.counters import (
    C_CONNECTIONS_MOVED,
    C_CONNECTIONS_REFUSED,
    C_MESSAGES_REWRITTEN,
    C_REFUSED_HANDED_OVER,
    C_REFUSED_NOT_AUTHORISED,
    C_REFUSED_STORE,
    C_SESSIONS_TAKEN_OVER,
)
from cython.cimports.tidemq.engine.base.engine_limits import EngineLimits
from cython.cimports.tidemq.engine.base.event import EVENT_AUTH, EVENT_CONNECT, EVENT_CONNECTED, Event
from cython.cimports.tidemq.engine.base.histograms import H_CONNECT, observe
from cython.cimports.tidemq.engine.base.system import RELEASE, store_u64
from cython.cimports.tidemq.engine.clients.authorising import (
    apply_rules,
    auth_method_of,
    identity_of,
    is_own_state,
    judge_will,
    keep_username,
    review,
    review_subscriptions,
    take_names,
)
from cython.cimports.tidemq.engine.clients.closing import close_connection
from cython.cimports.tidemq.engine.clients.finding import ask_for_session
from cython.cimports.tidemq.engine.clients.replaying import resume_replays
from cython.cimports.tidemq.engine.clients.subscribing import subscribe_at_connect
from cython.cimports.tidemq.engine.clients.wills import leave_will, publish_last_will
from cython.cimports.tidemq.engine.clients.wishes import apply_wishes, keep_will, wanted_expiry_s
from cython.cimports.tidemq.engine.index.topic_rules import REWRITES_PUBLISH, find_rewrite, rewrite
from cython.cimports.tidemq.engine.journal.journal import store_fails
from cython.cimports.tidemq.engine.journal.rows import append_u16
from cython.cimports.tidemq.engine.link.drops import note_drop
from cython.cimports.tidemq.engine.link.mail import (
    new_letter,
    new_mail,
)
from cython.cimports.tidemq.engine.link.output import (
    doom,
    touch,
)
from cython.cimports.tidemq.engine.link.replies import (
    append_packet,
    encode_connack,
    span_of,
    write_auth,
)
from cython.cimports.tidemq.engine.link.reports import (
    connection_event,
    drop_packet,
    is_local,
    keep_packet,
    post_event,
    post_report,
)
from cython.cimports.tidemq.engine.link.tracing import is_traced, look_for_trace, trace_in
from cython.cimports.tidemq.engine.link.visits import (
    count_visit,
    is_bridge,
    may_visit,
)
from cython.cimports.tidemq.engine.queues.backlogs import resume_backlog
from cython.cimports.tidemq.engine.queues.delivery import send_waiting
from cython.cimports.tidemq.engine.queues.handbacks import keep_held
from cython.cimports.tidemq.engine.queues.outbox import rewind_outbox
from cython.cimports.tidemq.engine.queues.promises import promise_connack
from cython.cimports.tidemq.engine.queues.queueing import make_stored
from cython.cimports.tidemq.engine.queues.sessions import (
    Found,
    assigned_client_id,
    end_session,
    find_session,
    set_online,
    store_session,
)
from cython.cimports.tidemq.engine.state.client import (
    AUTHENTICATING,
    CONNECTED,
    CONNECTING,
    DECIDING,
    FINDING,
    Identity,
    Session,
)
from cython.cimports.tidemq.engine.state.handles import handle_of
from cython.cimports.tidemq.engine.state.mail import MAIL_CONNECTION, Mail
from cython.cimports.tidemq.net.transport import certificate_of
from cython.cimports.tidemq.wire.packets import (
    Connect,
    Disconnect,
    append_string_property,
    parse_auth,
    parse_connect,
)
from cython.cimports.tidemq.wire.properties import has_property
from cython.cimports.tidemq.wire.protocol import (
    FAULT_AUTH_UNEXPECTED,
    FAULT_CLIENT_ID,
    FAULT_FLAPPING,
    FAULT_LIMIT,
    FAULT_NONE,
    FAULT_PACKET_TOO_LARGE,
    FAULT_PROTOCOL_VERSION,
    FAULT_QOS_NOT_SUPPORTED,
    FAULT_REMOTE,
    FAULT_RETAIN_NOT_SUPPORTED,
    FAULT_SECOND_CONNECT,
    FAULT_STORE,
    FAULT_TOPIC_LEVELS,
    PROP_ASSIGNED_CLIENT_ID,
    PROP_AUTH_DATA,
    PROP_AUTH_METHOD,
    PROP_REASON_STRING,
    RC_BAD_AUTHENTICATION_METHOD,
    RC_CLIENT_IDENTIFIER_NOT_VALID,
    RC_CONTINUE_AUTHENTICATION,
    RC_NOT_AUTHORIZED,
    RC_PROTOCOL_ERROR,
    RC_QUOTA_EXCEEDED,
    RC_REAUTHENTICATE,
    RC_SERVER_UNAVAILABLE,
    RC_SESSION_TAKEN_OVER,
    RC_SUCCESS,
    RC_TOPIC_NAME_INVALID,
    RC_UNSUPPORTED_PROTOCOL_VERSION,
    Fault,
    Span,
    fault_reason,
)
from cython.cimports.tidemq.wire.topics import check_topic_name


def _refuse(r, c, reason, fault):
    """CONNACK with a reason, session present 0, and the end [MQTT-3.2.2-6] [MQTT-3.2.2-7]."""
    _refuse_with(r, c, reason, fault, cython.NULL)


def _refuse_with(r, c, reason, fault, why):
    """The same with a reason string for a person to read; ``why`` may be NULL."""
    properties: string
    if why != cython.NULL and not why.empty():
        append_string_property(PROP_REASON_STRING, span_of(why), cython.address(properties))
    if reason:
        packet: string
        encode_connack(c, False, reason, cython.address(properties), cython.address(packet))
        append_packet(r, c, cython.address(packet))
    r.tally[C_CONNECTIONS_REFUSED] += 1
    doom(r, c, reason, fault)


def _may_come_in(r, c, client_id):
    """Whether the listener takes this version and clients of other machines, and it is not banned; the client
    is told where not.
    """
    why: string
    if not c.listener.versions >> c.version & 1:
        _refuse(r, c, RC_UNSUPPORTED_PROTOCOL_VERSION, FAULT_PROTOCOL_VERSION)
        return False
    if c.listener.local_only and not is_local(c):
        why.assign(
            cython.cast(
                cython.p_char,
                b"without an authenticator only clients of this machine may connect: "
                b"set authenticator, or authenticator_options.remote = true",
            )
        )
        _refuse_with(r, c, RC_NOT_AUTHORIZED, FAULT_REMOTE, cython.address(why))
        return False
    if not may_visit(r, c, client_id):
        _refuse(r, c, fault_reason(FAULT_FLAPPING), FAULT_FLAPPING)
        return False
    return True


def _check_will(r, c, connect):
    """The limits that hold for a message, at once: a will comes when nobody can be told any more."""
    limits: cython.pointer[EngineLimits] = cython.address(r.common.limits)
    fault: Fault = check_topic_name(connect.will_topic, limits.topic_levels_max)
    if fault == FAULT_NONE and connect.will_topic.size > limits.topic_bytes_max:
        fault = FAULT_TOPIC_LEVELS
    if fault == FAULT_NONE and connect.will_qos > c.qos_max:
        fault = FAULT_QOS_NOT_SUPPORTED  # [MQTT-3.2.2-12]
    if fault == FAULT_NONE and connect.will_retain and not c.retain_available:
        fault = FAULT_RETAIN_NOT_SUPPORTED  # [MQTT-3.2.2-13]
    if fault == FAULT_NONE and limits.payload_bytes_max:
        if connect.will_payload.size > limits.payload_bytes_max:
            fault = FAULT_PACKET_TOO_LARGE
    return fault


def _name_will(r, connect, body, size, named):
    """Whether the operator wants another topic for the will. ``named``: the same CONNECT with that, before
    anybody is asked: so it is what authorisers and rules are asked about, whenever the rules change.
    """
    topic: Span = connect.will_topic
    if topic.size > r.common.limits.topic_bytes_max:
        return False
    number: uint16_t = find_rewrite(r.topic_rules, topic, REWRITES_PUBLISH)
    if number == 0 or not rewrite(r.topic_rules, number, topic, cython.address(r.rewritten)):
        return False
    at: uint32_t = cython.cast(uint32_t, topic.data - body)
    named.assign(cython.cast(cython.p_char, body), at - 2)  # up to the topic's length
    append_u16(named, cython.cast(uint16_t, r.rewritten.size()))
    named.append(r.rewritten)
    named.append(cython.cast(cython.p_char, topic.data + topic.size), size - at - topic.size)
    r.tally[C_MESSAGES_REWRITTEN] += 1
    return True


def handle_connect(r, c, first, body, size):
    """A CONNECT as it comes from the socket."""
    connect: Connect
    named: string
    if c.state != CONNECTING:
        doom(r, c, RC_PROTOCOL_ERROR, FAULT_SECOND_CONNECT)  # [MQTT-3.1.0-2]
        return
    memset(cython.address(connect), 0, cython.sizeof(Connect))
    fault: Fault = parse_connect(first, body, size, cython.address(connect))
    c.version = connect.version
    look_for_trace(r, c, connect.client_id)
    if is_traced(c):
        trace_in(r, c, first, body, size)
    if fault == FAULT_NONE and connect.client_id.size == 0 and c.listener.client_id_required:
        fault = FAULT_CLIENT_ID
    if fault == FAULT_NONE and connect.has_will and r.topic_rules != cython.NULL:
        if _name_will(r, cython.address(connect), body, size, cython.address(named)):
            body = span_of(cython.address(named)).data
            size = span_of(cython.address(named)).size
            fault = parse_connect(first, body, size, cython.address(connect))
    if fault == FAULT_NONE and connect.has_will:
        fault = _check_will(r, c, cython.address(connect))
    if fault != FAULT_NONE:
        answered: cython.bint = c.version == 5 or fault in (FAULT_PROTOCOL_VERSION, FAULT_CLIENT_ID)
        _refuse(r, c, fault_reason(fault) if answered else 0, fault)
        return
    if not _may_come_in(r, c, connect.client_id):
        return
    asks: cython.bint = r.common.ask_connect or c.listener.asks
    c.connect_packet = keep_packet(r, first, body, size)
    c.since_ns = r.now_ns
    if c.version == 5 and has_property(cython.address(connect.properties), PROP_AUTH_METHOD):
        owner: unique_ptr[string] = make_unique[string]()
        who: cython.pointer[Identity] = identity_of(c)
        who.auth_method = owner.release()
        who.auth_method.assign(
            cython.cast(cython.p_char, connect.properties.auth_method.data),
            connect.properties.auth_method.size,
        )
        if not asks:
            _refuse(r, c, RC_BAD_AUTHENTICATION_METHOD, FAULT_NONE)
            return
    if asks:
        c.state = DECIDING
        c.asked = True
        touch(r, c)
        event: cython.pointer[Event] = connection_event(r, c, EVENT_CONNECT)
        event.packet = c.connect_packet[0]
        event.listener = c.listener.name
        event.flag = c.transport != cython.NULL and certificate_of(c.transport, cython.address(event.data))
        post_event(r.common, event)
        return
    _let_in(r, c, cython.NULL, cython.NULL)


def answer_connect(r, c, reason, letter):
    """The control plane has decided on a CONNECT, or wants another AUTH first.

    The letter's ``data``: authentication data, or where it refuses, the reason string.
    """
    data: cython.pointer[cython.const[string]] = letter.data
    if c.state != DECIDING:
        return
    holds(c.asked, b"connecting: a client whose CONNECT is decided on is not read from")
    c.asked = False
    r.resumed.push_back(handle_of(r, c))
    if reason == RC_CONTINUE_AUTHENTICATION and auth_method_of(c) == cython.NULL:
        reason = RC_BAD_AUTHENTICATION_METHOD  # the client named none: it cannot take part
    if reason == RC_CONTINUE_AUTHENTICATION:
        c.state = AUTHENTICATING
        c.deadline_ms = r.now_ms + r.common.limits.connect_timeout_ms
        write_auth(r, c, reason, data)
    elif reason != RC_SUCCESS:
        _refuse_with(r, c, reason, FAULT_NONE, data)
    else:
        take_names(r, c, letter)
        _let_in(r, c, letter.text, data)


def handle_auth(r, c, first, body, size):
    """AUTH: the next step of an exchange, or the wish to authenticate again (5.0 section 4.12)."""
    packet: Disconnect
    fault: Fault = parse_auth(first, body, size, cython.address(packet))
    if fault == FAULT_NONE:
        wanted: uint8_t = RC_REAUTHENTICATE if c.state == CONNECTED else RC_CONTINUE_AUTHENTICATION
        known: cython.bint = auth_method_of(c) != cython.NULL and has_property(
            cython.address(packet.properties), PROP_AUTH_METHOD
        )
        if known:
            method: string
            method.assign(
                cython.cast(cython.p_char, packet.properties.auth_method.data),
                packet.properties.auth_method.size,
            )
            known = method == auth_method_of(c)[0]  # [MQTT-4.12.1-1]
        # a CONNECTED client also continues an exchange that it began with 0x19
        if not known or (packet.reason != wanted and packet.reason != RC_CONTINUE_AUTHENTICATION):
            fault = FAULT_AUTH_UNEXPECTED
    if fault != FAULT_NONE:
        if c.state == CONNECTED:
            doom(r, c, fault_reason(fault), fault)
        else:
            _refuse(r, c, fault_reason(fault), fault)
        return
    c.asked = True
    touch(r, c)
    event: cython.pointer[Event] = connection_event(r, c, EVENT_AUTH)
    event.reason = packet.reason
    event.text = auth_method_of(c)[0]
    event.listener = c.listener.name
    event.flag = has_property(cython.address(packet.properties), PROP_AUTH_DATA)
    if event.flag:
        event.data.assign(
            cython.cast(cython.p_char, packet.properties.auth_data.data), packet.properties.auth_data.size
        )
    post_event(r.common, event)


def answer_auth(r, c, reason, letter):
    """The control plane's answer to an AUTH."""
    data: cython.pointer[cython.const[string]] = letter.data
    if (
        not c.asked
        or auth_method_of(c) == cython.NULL
        or c.pending_packet != cython.NULL
        or c.state in (DECIDING, FINDING)
    ):
        return
    c.asked = False
    r.resumed.push_back(handle_of(r, c))
    if c.state == CONNECTED:
        if reason >= 0x80:
            doom(r, c, reason, FAULT_NONE)
            return
        write_auth(r, c, reason, data)
        if reason == RC_SUCCESS:
            take_names(r, c, letter)
            review(r, c)
    elif reason == RC_CONTINUE_AUTHENTICATION:
        c.deadline_ms = r.now_ms + r.common.limits.connect_timeout_ms
        write_auth(r, c, reason, data)
    elif reason != RC_SUCCESS:
        _refuse(r, c, reason, FAULT_NONE)
    else:
        take_names(r, c, letter)
        _let_in(r, c, cython.NULL, data)


def _let_in(r, c, client_id, auth_data):
    """Lets the client in as which it was accepted, unless it comes too often as that."""
    if (client_id == cython.NULL or may_visit(r, c, span_of(client_id))) and count_visit(r, c):
        admit(r, c, client_id, auth_data, r.common.ask_sessions)
    else:
        _refuse(r, c, fault_reason(FAULT_FLAPPING), FAULT_FLAPPING)


def _send_elsewhere(r, c, target, client_id, auth_data):
    """Hands the connection to the reactor that owns its session; it is no longer ours when this returns."""
    mail: Mail = new_mail(MAIL_CONNECTION)
    mail.hops = cython.cast(uint8_t, target)
    mail.letter = new_letter()
    name: unique_ptr[string] = make_unique[string](client_id[0])
    mail.letter.text = name.release()
    if auth_data != cython.NULL:
        data: unique_ptr[string] = make_unique[string](auth_data[0])
        mail.letter.data = data.release()
    c.leaving = True
    touch(r, c)
    mail.pointer = c
    r.departing.push_back(mail)
    r.tally[C_CONNECTIONS_MOVED] += 1


def _may_be(c, client_id):
    """Whether the client may have this identifier: those of bridges are for who comes in where they do, and
    nobody else there.
    """
    of_bridge: cython.bint = client_id.compare(0, 8, cython.cast(cython.p_char, b"$bridge/")) == 0
    return of_bridge == is_bridge(c)


def _needs_store(r, client_id, connect):
    """Whether a session would have to be stored, or removed from the store, before the client is let in.
    Where the session lives on another reactor that one says so.
    """
    found: Found = find_session(r, client_id, False)
    if found.session != cython.NULL and (found.reactor != r.index or found.moving):
        return False
    kept: cython.bint = wanted_expiry_s(connect) != 0 and r.common.limits.session_expiry_s_max != 0
    if found.session == cython.NULL:
        return found.removal or kept
    if found.session.stored == cython.NULL:
        return kept
    return connect.clean_start


def answer_session(r, c, reason):
    """The control plane has seen to it that the client's session is here, if there is one, or refuses it."""
    if c.state != FINDING:
        return
    holds(c.asked, b"connecting: a client whose session is looked for is not read from")
    c.asked = False
    r.resumed.push_back(handle_of(r, c))
    if reason != RC_SUCCESS:
        _refuse(r, c, reason, FAULT_NONE)
        return
    name: string = c.identity.session_name[0]
    del c.identity.session_name
    c.identity.session_name = cython.NULL
    data: unique_ptr[string] = unique_ptr[string](c.identity.session_data)
    c.identity.session_data = cython.NULL
    admit(r, c, cython.address(name), data.get(), False)


def admit(r, c, client_id, auth_data, asks):
    """The CONNECT is accepted: finds or makes the session, here or on the reactor that owns it.

    ``client_id``: NULL where it is the client's own; ``asks``: first the control plane is to see to it that
    the session is here.
    """
    connect: Connect
    holds(c.connect_packet != cython.NULL, b"connecting: a CONNECT is kept until its client is in")
    packet: cython.pointer[cython.const[uint8_t]] = span_of(c.connect_packet).data
    parse_connect(
        packet[0], packet + 1, cython.cast(uint32_t, c.connect_packet.size() - 1), cython.address(connect)
    )
    name: string
    if client_id != cython.NULL:
        name = client_id[0]
    else:
        name.assign(cython.cast(cython.p_char, connect.client_id.data), connect.client_id.size)
    if name.empty():
        name = assigned_client_id(r)
    if name.size() > r.common.limits.client_id_bytes_max or not _may_be(c, cython.address(name)):
        _refuse(r, c, RC_CLIENT_IDENTIFIER_NOT_VALID, FAULT_LIMIT)
        return
    keep_username(r, c, cython.address(connect))
    apply_rules(r, c, cython.address(name))
    refusal: uint8_t = RC_SUCCESS
    if connect.has_will:
        refusal = judge_will(c, cython.address(name), cython.address(connect))
    if (refusal == RC_TOPIC_NAME_INVALID and c.version < 5) or (
        refusal and is_own_state(cython.address(name), connect.will_topic)
    ):
        # there is no reason to tell, or nobody whom to tell it would help: a bridge is to cross all the same
        connect.has_will = False
    elif refusal:
        _refuse(r, c, refusal, FAULT_NONE)
        return
    if store_fails(r) and _needs_store(r, cython.address(name), cython.address(connect)):
        r.tally[C_REFUSED_STORE] += 1
        _refuse(r, c, RC_SERVER_UNAVAILABLE, FAULT_STORE)
        return
    if asks:
        ask_for_session(r, c, cython.address(name), cython.address(connect), auth_data)
        return
    if not _clear_the_way(r, cython.address(name), connect.clean_start):
        r.tally[C_REFUSED_HANDED_OVER] += 1
        _refuse(r, c, RC_SERVER_UNAVAILABLE, FAULT_NONE)
        return
    found: Found = find_session(r, cython.address(name), True)
    if found.reactor != r.index or found.moving:
        _send_elsewhere(r, c, found.reactor, cython.address(name), auth_data)
    elif found.session == cython.NULL:
        _refuse(r, c, RC_QUOTA_EXCEEDED, FAULT_NONE)
    else:
        note_drop(r, found.session, C_REFUSED_NOT_AUTHORISED, refusal != RC_SUCCESS)
        _attach(r, c, cython.address(found), cython.address(connect), auth_data)


def _clear_the_way(r, client_id, clean_start):
    """Ends the client's earlier connection, and its session if it wants a new one; both only if they live
    here. False: nobody may have the session, for it goes to another node.

    The will of the earlier connection goes out, unless a delay lets the session's going on cancel it
    [MQTT-3.1.4-3] [MQTT-3.1.4-4].
    """
    found: Found = find_session(r, client_id, False)
    if found.session == cython.NULL or found.reactor != r.index or found.moving:
        return True
    if found.session.handed:
        return False
    if found.session.connection != cython.NULL:
        r.tally[C_SESSIONS_TAKEN_OVER] += 1
        doom(r, found.session.connection, RC_SESSION_TAKEN_OVER, FAULT_NONE)
        found.session.connection.doom_reason = RC_SESSION_TAKEN_OVER
        close_connection(r, found.session.connection)
        # a session that ended with its connection is gone; another reactor may have made the next one already
        found = find_session(r, client_id, False)
        if found.session == cython.NULL or found.reactor != r.index or found.moving:
            return True
    if clean_start:
        publish_last_will(r, found.session)
        end_session(r, found.session)
    return True


def _answer_connack(r, c, present, properties, removal):
    """CONNACK; after the removal of an earlier session from the store, where that is under way. Until then
    the client is not read from, so that nothing comes before its CONNACK.
    """
    packet: string
    encode_connack(c, present, RC_SUCCESS, properties, cython.address(packet))
    if removal and packet.size() <= c.packet_bytes_max:
        c.pause_count += 1
        promise_connack(r, c, cython.address(packet))
    else:
        append_packet(r, c, cython.address(packet))
        observe(cython.address(r.histograms[H_CONNECT]), r.now_ns - c.since_ns, 1)
        c.since_ns = r.now_ns


def _attach(r, c, found, connect, auth_data):
    """Joins connection and session, answers with CONNACK, and resumes what was in flight."""
    properties: string
    s: cython.pointer[Session] = found.session
    present: cython.bint = not found.created
    if ASSERTS:
        holds(may_touch(s.reactor), b"connecting: a client joins its session on the reactor that owns it")
    holds(s.connection == cython.NULL, b"connecting: a session has one connection")
    leave_will(r, s)
    s.ends_ms = 0
    # atomic: the façade looks whether there is one
    store_u64(
        cython.cast(cython.pointer[uint64_t], cython.address(s.connection)), cython.cast(uint64_t, c), RELEASE
    )
    c.session = s
    c.released_elsewhere = r.common.ask_sessions and s.received_count > 0
    c.last_read_ms = r.now_ms
    apply_wishes(r, c, s, connect, cython.address(properties))
    if connect.has_will:
        keep_will(r, s, connect)
    if r.common.durable and s.expiry_s and s.stored == cython.NULL:
        make_stored(r, s)
    store_session(r, s)
    if c.version == 5 and connect.client_id.size == 0:  # [MQTT-3.2.2-16]
        append_string_property(
            PROP_ASSIGNED_CLIENT_ID, span_of(cython.address(s.client_id)), cython.address(properties)
        )
    if auth_method_of(c) != cython.NULL:
        append_string_property(PROP_AUTH_METHOD, span_of(auth_method_of(c)), cython.address(properties))
        if auth_data != cython.NULL:
            append_string_property(PROP_AUTH_DATA, span_of(auth_data), cython.address(properties))
    _answer_connack(r, c, present, cython.address(properties), found.removal)
    c.state = CONNECTED
    # a client that takes no CONNACK was never there, and of a broker that ends nobody is: no will
    c.clean_disconnect = c.doomed or r.stopping
    if c.doomed:
        c.doom_reason = 0
    drop_packet(r, c.connect_packet)
    c.connect_packet = cython.NULL
    if r.common.report_connections:
        event: cython.pointer[Event] = connection_event(r, c, EVENT_CONNECTED)
        event.flag = present
        event.listener = c.listener.name
        post_report(r, event)
    set_online(r, s, True)
    keep_held(r, s)
    if present:
        review_subscriptions(r, c)
        rewind_outbox(cython.address(s.outbox))
        send_waiting(r, s)
        resume_backlog(r, s)
        resume_replays(r, c)
    if not found.removal:
        subscribe_at_connect(r, c)  # else when its CONNACK goes out
