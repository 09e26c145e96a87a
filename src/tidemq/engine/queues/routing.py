"""From a published message to everybody who gets it: sessions here, other reactors by mail, one member of
each group, other nodes of a cluster.

A message is mailed once to each other reactor that has subscribers; that reactor finds them in its own cache.
Another node is what another reactor is (``forwarding``).
"""

import cython
from cython.cimports.libc.stdint import uint16_t, uint32_t, uint64_t
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import C_DROPPED_NO_GROUP_MEMBER, C_MESSAGES_UNROUTED
from cython.cimports.tidemq.engine.base.message import (
    Passage,
    close_passage,
    copy_passage,
    open_passage,
    passage_message,
)
from cython.cimports.tidemq.engine.index.subscriptions import (
    SharedGroup,
    find_group_by_name,
    lock_shared,
    unlock_shared,
)
from cython.cimports.tidemq.engine.journal.capturing import capture
from cython.cimports.tidemq.engine.journal.journal import next_id
from cython.cimports.tidemq.engine.link.backpressure import wait_for_inbox
from cython.cimports.tidemq.engine.link.drops import note_drop
from cython.cimports.tidemq.engine.link.mail import send_message_mail
from cython.cimports.tidemq.engine.queues.cache import find_cached_group, find_receivers
from cython.cimports.tidemq.engine.queues.delivery import deliver
from cython.cimports.tidemq.engine.queues.forwarding import forward, forward_to_group
from cython.cimports.tidemq.engine.queues.groups import draw, draw_any, draw_ready, is_waiting
from cython.cimports.tidemq.engine.queues.promises import promise_kept
from cython.cimports.tidemq.engine.queues.retaining import retain_passage
from cython.cimports.tidemq.engine.queues.shards import shard_of
from cython.cimports.tidemq.engine.state.client import Membership, Session
from cython.cimports.tidemq.engine.state.mail import MAIL_GROUP, MAIL_MESSAGE, Mail
from cython.cimports.tidemq.engine.state.routing import PLUGIN_DELIVERED, CacheEntry, Group, Receiver
from cython.cimports.tidemq.engine.state.work import take_work
from cython.cimports.tidemq.wire.protocol import RC_IMPLEMENTATION_SPECIFIC_ERROR


def _deliver_plain(r, p, entry):
    """To this reactor's plain subscribers."""
    index: cython.size_t
    take_work(r, entry.receivers.size())
    for index in range(entry.receivers.size()):
        receiver: cython.pointer[Receiver] = cython.address(entry.receivers[index])
        own: cython.bint = receiver.session.number == p.publisher
        if own and not receiver.takes_own:
            continue  # [MQTT-3.8.3-3]
        deliver(
            r,
            receiver.session,
            p,
            receiver.own_qos if own else receiver.qos,
            p.retain and receiver.retain_as_published,
            entry.ids.data() + receiver.ids_at,
            receiver.own_ids_count if own else receiver.ids_count,
        )
        p.receivers += 1


def _mail_to_reactors(r, p, entry):
    """Once to each other reactor with plain subscribers."""
    others: uint64_t = entry.reactors
    holds(not others >> r.index & 1, b"routing: a reactor mails nothing to itself")
    target: uint16_t = 0
    while others:
        if others & 1:
            mail: cython.pointer[Mail] = send_message_mail(
                r, target, MAIL_MESSAGE, passage_message(p, r.tally)
            )
            if p.token and entry.stored_reactors >> target & 1:
                mail.token = p.token
                mail.offered = p.offered
                p.answers += 1
            p.places += 1
            wait_for_inbox(r, target, p.feeder)
            p.receivers += 1
        others >>= 1
        target += 1


def _choose_here(r, group, qos):
    """A member of this reactor that takes a message now, or NULL. At QoS 0 any takes one, for it needs no
    place in a window.
    """
    member: cython.pointer[Membership] = cython.NULL
    if qos == 0 or group.handbacks == 0:
        member = draw_ready(r, group)
    if member == cython.NULL and qos == 0 and not group.members.empty():
        member = draw_any(r, group)
    return member


def _choose_reactor(r, group):
    """One of the other reactors, each as often as it has members; there must be one."""
    index: cython.size_t = 0
    at: uint32_t = draw(r) % group.elsewhere_count
    while at >= group.elsewhere[index].members:
        at -= group.elsewhere[index].members
        index += 1
        holds(index < group.elsewhere.size(), b"routing: the shares of a group sum up to their count")
    return group.elsewhere[index].reactor


def _mail_to_group(r, p, group):
    target: uint16_t = _choose_reactor(r, group)
    mail: cython.pointer[Mail] = send_message_mail(r, target, MAIL_GROUP, passage_message(p, r.tally))
    mail.number = group.number
    mail.token = p.token
    mail.offered = p.offered
    p.receivers += 1
    p.places += 1
    if p.token:
        p.answers += 1
    wait_for_inbox(r, target, p.feeder)


def _goes_to_node(r, group):
    """Whether a member on another node is drawn: among all that are online, or where none is here."""
    here: uint32_t = cython.cast(uint32_t, group.here.members.size()) + group.elsewhere_count
    if here and (group.nodes_count == 0 or r.common.nodes.get().prefers_own):
        return False
    if here == 0:
        return group.nodes_count or not group.local
    return draw(r) % (here + group.nodes_count) >= here


def _deliver_to_group(r, p, group):
    """To a member drawn among all that are online, on whatever node."""
    if not group.nodes.empty() and _goes_to_node(r, group):
        forward_to_group(r, p, group)
    else:
        _deliver_locally(r, p, group)


def _deliver_locally(r, p, group):
    """To a member drawn among those of this node that are online, passing over those of this reactor that
    take none now: of the others nobody knows. Where there is none it waits in the group's queue.
    """
    member: cython.pointer[Membership] = cython.NULL
    here: uint32_t = cython.cast(uint32_t, group.here.members.size())
    if here and draw(r) % (here + group.elsewhere_count) < here:
        member = _choose_here(r, group.here, p.qos)
    if member == cython.NULL and group.elsewhere_count:
        _mail_to_group(r, p, group)
    else:
        _deliver_here(r, p, group, member)


def _deliver_here(r, p, group, member):
    """To this member, or, where it is NULL, into the group's queue. QoS 0 is not queued, and what is offered
    always goes by way of the queue.
    """
    shard: cython.pointer[Session] = cython.NULL
    stored: cython.bint = r.common.durable and group.stored
    if p.qos:
        shard = shard_of(r, group.here, stored)
    if shard == cython.NULL and (member == cython.NULL or p.offered):
        note_drop(r, cython.NULL, C_DROPPED_NO_GROUP_MEMBER, 1)
        return
    p.receivers += 1
    p.attended = shard != cython.NULL and (not group.here.members.empty() or group.elsewhere_count)
    if p.offered and stored:
        deliver(r, shard, p, p.qos, p.retain, cython.NULL, 0)
        p.kept = True  # the shard itself may be new
        return
    own: Passage = p[0]
    if r.common.durable and p.qos:
        # a member may get the message by another subscription too
        own = copy_passage(p, next_id(r))
        own.offered = False
    if shard != cython.NULL:
        own.shard = shard.number
        own.shard_stored = shard.stored != cython.NULL
    if shard != cython.NULL and (member == cython.NULL or is_waiting(group.here)):
        own.shard = 0  # it is the shard's own
        deliver(r, shard, cython.address(own), p.qos, p.retain, cython.NULL, 0)
    else:
        ids_count: uint32_t = 1 if member.subscription_id else 0
        deliver(
            r,
            member.session,
            cython.address(own),
            member.qos,
            p.retain and member.retain_as_published,
            cython.address(member.subscription_id),
            ids_count,
        )
    p.heads_ready = own.heads_ready
    p.kept = own.kept
    p.refused = own.refused
    if r.common.durable and p.qos:
        close_passage(cython.address(own), r.tally)
    else:
        p.message = own.message


def route(r, p):
    """Passes a message on to all who are subscribed; ``p.receivers`` says how many sessions and reactors took
    it.
    """
    if p.retain:
        retain_passage(r, p)
    entry: cython.pointer[CacheEntry] = cython.cast(cython.pointer[CacheEntry], p.entry)
    if entry == cython.NULL:
        entry = find_receivers(r, cython.address(p.topic))
    p.reported = entry.plugins & PLUGIN_DELIVERED
    if p.offered and not entry.stored_reactors and entry.groups.empty() and not entry.nodes:
        # nobody is to be asked; but it must not overtake one of the client's that somebody is asked about
        p.offered = r.sessions[p.publisher].offers != 0
    _deliver_plain(r, p, entry)
    others: uint64_t = entry.reactors
    p.only_reactors = others if p.receivers == 0 and entry.groups.empty() else 0
    if others:
        _mail_to_reactors(r, p, entry)
    index: cython.size_t
    take_work(r, entry.groups.size())
    for index in range(entry.groups.size()):
        _deliver_to_group(r, p, cython.address(entry.groups[index]))
    if entry.streams and p.offered:
        p.kept = True  # it is captured when all have answered, if only the stream keeps it
    elif entry.streams:
        capture(r, p, entry.streams)
    if entry.streams:
        p.receivers += 1
    if entry.nodes:
        forward(r, p, entry.nodes)
    if p.receivers == 0:
        r.tally[C_MESSAGES_UNROUTED] += 1


def route_arrived(r, p):
    """What another node has passed on: for the plain subscribers of all reactors here, who alone are what
    it was asked for. It is retained, kept for streams and passed on where it was published.
    """
    entry: cython.pointer[CacheEntry] = find_receivers(r, cython.address(p.topic))
    p.reported = entry.plugins & PLUGIN_DELIVERED
    _deliver_plain(r, p, entry)
    if entry.reactors:
        _mail_to_reactors(r, p, entry)


def route_to_group(r, p, filter, group, anywhere):
    """For a member of a shared group alone: here, as another node has passed it on, or ``anywhere``. Where
    there is none any more it is refused, so that it is sent again.
    """
    lock_shared(r.common.subscriptions)
    found: cython.pointer[SharedGroup] = find_group_by_name(r.common.subscriptions, filter, group)
    number: uint64_t = 0 if found == cython.NULL else found.id
    unlock_shared(r.common.subscriptions)
    entry: cython.pointer[CacheEntry] = find_receivers(r, cython.address(p.topic))
    known: cython.pointer[Group] = find_cached_group(entry, number)
    p.reported = entry.plugins & PLUGIN_DELIVERED
    if known != cython.NULL and anywhere:
        _deliver_to_group(r, p, known)
    elif known == cython.NULL or not known.local:
        if not anywhere:  # else it waits where it is
            note_drop(r, cython.NULL, C_DROPPED_NO_GROUP_MEMBER, 1)
        p.refused = RC_IMPLEMENTATION_SPECIFIC_ERROR
    else:
        _deliver_locally(r, p, known)


def route_message(r, message):
    """Routes a message that somebody already holds: a will, or one of the control plane's."""
    passage: Passage
    if message.id.clock == 0 and (r.common.durable or message.retain):
        message.id = next_id(r)
    open_passage(cython.address(passage), message)
    route(r, cython.address(passage))
    close_passage(cython.address(passage), r.tally)


def deliver_mailed(r, message, token, offered):
    """A message from another reactor, for the plain subscribers of this one."""
    passage: Passage
    open_passage(cython.address(passage), message)
    passage.offered = offered
    entry: cython.pointer[CacheEntry] = find_receivers(r, cython.address(passage.topic))
    passage.reported = entry.plugins & PLUGIN_DELIVERED
    _deliver_plain(r, cython.address(passage), entry)
    promise_kept(r, cython.address(passage), token)
    close_passage(cython.address(passage), r.tally)


def deliver_to_group(r, message, group, token, offered):
    """A message from another reactor, for a member here. Where none takes it, or none is left, it waits in
    the group's queue here, which moves to another reactor when all members are there.
    """
    passage: Passage
    open_passage(cython.address(passage), message)
    entry: cython.pointer[CacheEntry] = find_receivers(r, cython.address(passage.topic))
    known: cython.pointer[Group] = find_cached_group(entry, group)
    passage.token = token
    passage.offered = offered
    passage.reported = entry.plugins & PLUGIN_DELIVERED
    if known == cython.NULL:
        note_drop(r, cython.NULL, C_DROPPED_NO_GROUP_MEMBER, 1)
    else:
        member: cython.pointer[Membership] = _choose_here(r, known.here, passage.qos)
        _deliver_here(r, cython.address(passage), known, member)
    promise_kept(r, cython.address(passage), token)
    close_passage(cython.address(passage), r.tally)
