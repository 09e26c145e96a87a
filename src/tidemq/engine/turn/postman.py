"""What a reactor does with its mail: messages and connections from other reactors, answers and wishes from
above.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.inquiry import Inquiry
from cython.cimports.tidemq.engine.base.message import release_message
from cython.cimports.tidemq.engine.base.roster import Roster
from cython.cimports.tidemq.engine.base.system import EPOLL_CTL_DEL, epoll_ctl
from cython.cimports.tidemq.engine.clients.authorising import bring_up_to_date, judge_asked, take_policy
from cython.cimports.tidemq.engine.clients.closing import close_connection, place_connection
from cython.cimports.tidemq.engine.clients.commit_results import answer_kept, keep_promises, section_answered
from cython.cimports.tidemq.engine.clients.connecting import (
    admit,
    answer_auth,
    answer_connect,
    answer_session,
)
from cython.cimports.tidemq.engine.clients.holding import answer_held
from cython.cimports.tidemq.engine.clients.inquiries import answer_inquiry
from cython.cimports.tidemq.engine.clients.leaving import release_session
from cython.cimports.tidemq.engine.clients.placement import welcome
from cython.cimports.tidemq.engine.clients.publishing import answer_publish
from cython.cimports.tidemq.engine.clients.replaying import deliver_replayed, feed_replay, revoke_replay
from cython.cimports.tidemq.engine.clients.roll_call import call_roll
from cython.cimports.tidemq.engine.clients.subscribing import answer_subscribe
from cython.cimports.tidemq.engine.index.rules import Policy, release_policy
from cython.cimports.tidemq.engine.index.subscriptions import lock_exclusive, move_all, unlock_exclusive
from cython.cimports.tidemq.engine.index.topic_rules import TopicRules, release_topic_rules
from cython.cimports.tidemq.engine.link.backpressure import pause_feeder, resume_feeder
from cython.cimports.tidemq.engine.link.mail import free_letter
from cython.cimports.tidemq.engine.link.output import doom, touch
from cython.cimports.tidemq.engine.link.replies import span_of
from cython.cimports.tidemq.engine.link.timers import begin_expiry, time_connection, time_session
from cython.cimports.tidemq.engine.queues.agreement import settle_offer
from cython.cimports.tidemq.engine.queues.arrivals import begin_arrival, free_arrival
from cython.cimports.tidemq.engine.queues.backlogs import begin_backlog
from cython.cimports.tidemq.engine.queues.clearing import begin_clearing
from cython.cimports.tidemq.engine.queues.delivery import send_waiting
from cython.cimports.tidemq.engine.queues.doubles import await_doubles
from cython.cimports.tidemq.engine.queues.giving import give_to_group
from cython.cimports.tidemq.engine.queues.outside_rows import note_added, note_subscription, note_taken
from cython.cimports.tidemq.engine.queues.queueing import accept_rows, expire_rows, forget_rows, free_rows
from cython.cimports.tidemq.engine.queues.routing import deliver_mailed, deliver_to_group, route_message
from cython.cimports.tidemq.engine.queues.sessions import (
    Found,
    add_subscription,
    end_session,
    find_session,
    new_session,
    store_session,
)
from cython.cimports.tidemq.engine.queues.shards import adopt_shard, look_at_room, serve_shard
from cython.cimports.tidemq.engine.state.arrival import Arrival
from cython.cimports.tidemq.engine.state.client import CONNECTING, Connection, Session
from cython.cimports.tidemq.engine.state.handles import connection_of, handle_of
from cython.cimports.tidemq.engine.state.mail import (
    MAIL_ADDED,
    MAIL_ADOPT,
    MAIL_ALL_CAME,
    MAIL_ANSWER_AUTH,
    MAIL_ANSWER_CONNECT,
    MAIL_ANSWER_HELD,
    MAIL_ANSWER_SESSION,
    MAIL_ANSWER_SUBSCRIBE,
    MAIL_CLEARING,
    MAIL_COMMITTED,
    MAIL_CONNECTION,
    MAIL_DISCONNECT,
    MAIL_DOUBLES,
    MAIL_EXPIRED,
    MAIL_EXPIRING,
    MAIL_FAILED,
    MAIL_FED,
    MAIL_GIVE,
    MAIL_GO,
    MAIL_GROUP,
    MAIL_INQUIRY,
    MAIL_JUDGE,
    MAIL_KEPT,
    MAIL_MESSAGE,
    MAIL_MOVED,
    MAIL_NODE,
    MAIL_PAUSE,
    MAIL_PUBLISH,
    MAIL_RELEASE,
    MAIL_REMOVED,
    MAIL_REPLAYED,
    MAIL_RESUME,
    MAIL_REVOKE,
    MAIL_ROSTER,
    MAIL_ROWS,
    MAIL_RULES,
    MAIL_SETTLE,
    MAIL_SHARD,
    MAIL_STOP,
    MAIL_SUBSCRIBE,
    MAIL_SUBSCRIPTION,
    MAIL_TAKEN,
    MAIL_TOPIC_RULES,
    MAIL_UNSUBSCRIBE,
    Mail,
)
from cython.cimports.tidemq.engine.state.section import Section, StoredRows
from cython.cimports.tidemq.engine.turn.arriving import accept_arrived, begin_settling


def _adopt(r, mail):
    """A connection whose session lives here: its CONNECT has been accepted already."""
    c: cython.pointer[Connection] = cython.cast(cython.pointer[Connection], mail.pointer)
    holds(c.leaving, b"postman: a connection that comes was sent here")
    c.leaving = False
    place_connection(r, c)
    touch(r, c)  # it may have been doomed where it comes from, and it is closed here
    if r.stopping:
        doom(r, c, 0, 0)
    if c.doomed:
        return
    time_connection(r, c, c.deadline_ms)
    c.state = CONNECTING
    admit(r, c, mail.letter.text, mail.letter.data, False)
    if not c.leaving:
        r.resumed.push_back(handle_of(r, c))


def _answer(r, mail):
    """The control plane's decision; one for a connection that is gone, or about to move, is dropped."""
    c: cython.pointer[Connection] = connection_of(r, mail.number)
    if c == cython.NULL or c.doomed or c.leaving or r.stopping:
        return
    touch(r, c)
    if r.review_left:
        bring_up_to_date(r, c)
    if mail.kind == MAIL_ANSWER_CONNECT:
        answer_connect(r, c, mail.reason, mail.letter)
    elif mail.kind == MAIL_ANSWER_SESSION:
        answer_session(r, c, mail.reason)
    elif mail.kind == MAIL_ANSWER_AUTH:
        answer_auth(r, c, mail.reason, mail.letter)
    elif mail.kind == MAIL_ANSWER_SUBSCRIBE:
        answer_subscribe(r, c, mail.letter)
    elif mail.kind == MAIL_ANSWER_HELD:
        answer_held(r, c, mail)
    else:
        answer_publish(r, c, mail.reason, mail.token)


def _disconnect_client(r, mail):
    """Ends the connection of a client, here or wherever its session lives."""
    found: Found = find_session(r, mail.letter.text, False)
    if found.session == cython.NULL:
        return
    if found.reactor != r.index or found.moving:
        forwarded: Mail = mail[0]
        r.outgoing[found.reactor].push_back(forwarded)
        mail.letter = cython.NULL
    elif found.session.connection != cython.NULL:
        doom(r, found.session.connection, mail.reason, 0)


def _subscribe(r, mail):
    """A receiver of the embedding program: a session without a client."""
    wants_retained: cython.bint = False
    s: cython.pointer[Session] = new_session(r)
    s.internal = True
    s.number = mail.number
    s.watch = cython.cast(uint8_t, mail.token)
    holds(not r.sessions.count(s.number), b"postman: a new receiver has a number of its own")
    r.sessions[s.number] = s
    add_subscription(r, s, span_of(mail.letter.text), mail.reason, 0, cython.address(wants_retained))
    if not s.watch:  # what is retained was counted when it came
        begin_backlog(r, s, span_of(mail.letter.text), mail.reason, 0)


def _take_topic_rules(r, mail):
    """Other rules of topics: what is known of a topic has to be looked up anew."""
    release_topic_rules(r.topic_rules, r.tally)
    r.topic_rules = cython.cast(cython.pointer[TopicRules], mail.pointer)
    lock_exclusive(r.common.subscriptions)
    move_all(r.common.subscriptions)
    unlock_exclusive(r.common.subscriptions)


def _take_rows(r, mail):
    """Rows that the store found for a queue, which may be gone by now, or that all have been found; or a
    subscription of its session.
    """
    rows: cython.pointer[StoredRows] = cython.cast(cython.pointer[StoredRows], mail.pointer)
    if not r.sessions.count(mail.number) or r.sessions[mail.number].stored == cython.NULL:
        if rows != cython.NULL:
            free_rows(r, rows)
        return
    s: cython.pointer[Session] = r.sessions[mail.number]
    if mail.kind == MAIL_EXPIRED:
        expire_rows(r, s, rows)
        return
    if mail.kind == MAIL_REMOVED:
        forget_rows(r, s, rows)
        return
    if mail.kind == MAIL_SUBSCRIPTION:
        note_subscription(
            r,
            s,
            span_of(mail.letter.text),
            mail.offered,
            mail.reason,
            cython.cast(uint32_t, mail.token),
        )
    elif mail.kind == MAIL_ALL_CAME:
        s.stored.older_may_come = False
        time_session(r, s)
    elif mail.kind == MAIL_DOUBLES:
        await_doubles(r, s, cython.cast(int64_t, mail.token))
    elif mail.kind == MAIL_CLEARING:
        begin_clearing(s.stored)
    elif mail.kind == MAIL_EXPIRING:
        if s.connection == cython.NULL and s.ends_ms == 0:
            begin_expiry(r, s)
            time_session(r, s)
            store_session(r, s)
    elif mail.kind == MAIL_ADDED:
        note_added(r, s, rows)
    elif mail.kind == MAIL_TAKEN:
        note_taken(r, s, rows)
    else:
        accept_rows(r, s, rows)
    if s.group:
        serve_shard(r, s)
    elif s.connection != cython.NULL:
        send_waiting(r, s)
        look_at_room(r, s)


def _stop(r):
    """Reads nothing more; what is written still goes out, then comes the goodbye."""
    index: cython.size_t
    r.stopping = True
    for index in range(r.listening.size()):
        epoll_ctl(r.epoll, EPOLL_CTL_DEL, r.listening[index].fd, cython.NULL)
    r.stop_ms = r.now_ms + r.common.limits.shutdown_ms
    for index in range(r.connections.size()):
        c: cython.pointer[Connection] = r.connections[index]
        if c == cython.NULL or c.doomed:
            continue
        c.asked = True
        c.clean_disconnect = True  # the broker ends, not the client: nobody is left to get its will
        touch(r, c)


def _free_letter(r, mail):
    if mail.letter != cython.NULL:
        del mail.letter.text
        del mail.letter.data
        del mail.letter.username
        del mail.letter.groups
        del mail.letter.starts
        release_policy(mail.letter.own_rules, r.tally)
        free_letter(mail.letter)
        mail.letter = cython.NULL


def settle_mail(r, mail):
    """Acts on a mail after the reactors have ended: messages go into the queues, all else is void."""
    if mail.message != cython.NULL:
        handle_mail(r, mail)
        return
    c: cython.pointer[Connection] = cython.cast(cython.pointer[Connection], mail.pointer)
    if mail.kind == MAIL_MOVED:
        welcome(r, mail)
        close_connection(r, c)
        del c  # for `welcome` has left that to the end of a turn
    if mail.kind == MAIL_SHARD:
        adopt_shard(r, cython.cast(cython.pointer[Session], mail.pointer))
    if mail.kind == MAIL_COMMITTED:
        section_answered(r, cython.cast(cython.pointer[Section], mail.pointer), mail.reason)
        while keep_promises(r):
            pass
    if mail.kind in (MAIL_ROWS, MAIL_EXPIRED, MAIL_REMOVED, MAIL_ADDED, MAIL_TAKEN):
        free_rows(r, cython.cast(cython.pointer[StoredRows], mail.pointer))
    if mail.kind == MAIL_ADOPT:
        free_arrival(cython.cast(cython.pointer[Arrival], mail.pointer), r.tally)
    if mail.kind == MAIL_RULES:
        release_policy(cython.cast(cython.pointer[Policy], mail.pointer), r.tally)
    if mail.kind == MAIL_TOPIC_RULES:
        release_topic_rules(cython.cast(cython.pointer[TopicRules], mail.pointer), r.tally)
    if mail.kind == MAIL_ROSTER:
        roster: cython.pointer[Roster] = cython.cast(cython.pointer[Roster], mail.pointer)
        del roster
    if mail.kind == MAIL_INQUIRY:
        inquiry: cython.pointer[Inquiry] = cython.cast(cython.pointer[Inquiry], mail.pointer)
        del inquiry
    if mail.kind == MAIL_CONNECTION:
        place_connection(r, c)
        close_connection(r, c)
    _free_letter(r, mail)


def handle_mail(r, mail):
    """Acts on one mail and frees what came with it."""
    kind: uint8_t = mail.kind
    if kind == MAIL_MESSAGE:
        deliver_mailed(r, mail.message, mail.token, mail.offered)
    elif kind == MAIL_GROUP:
        deliver_to_group(r, mail.message, mail.number, mail.token, mail.offered)
    elif kind == MAIL_PUBLISH:
        route_message(r, mail.message)
    elif kind == MAIL_GIVE:
        give_to_group(r, mail.message, span_of(mail.letter.text), mail.number)
    elif kind == MAIL_KEPT:
        answer_kept(r, mail)
    elif kind == MAIL_GO:
        settle_offer(r, mail.number, mail.reason)
    elif kind == MAIL_COMMITTED:
        section_answered(r, cython.cast(cython.pointer[Section], mail.pointer), mail.reason)
    elif kind == MAIL_FAILED:
        holds(mail.number > r.failures, b"postman: failures of the store are counted upwards")
        r.failures = mail.number
    elif MAIL_ROWS <= kind <= MAIL_ALL_CAME:  # of a queue, or of its session
        _take_rows(r, mail)
    elif kind == MAIL_RELEASE:
        release_session(r, mail.letter.text, mail.reason)
    elif kind == MAIL_ADOPT:
        begin_arrival(r, cython.cast(cython.pointer[Arrival], mail.pointer))
    elif kind == MAIL_SHARD:
        adopt_shard(r, cython.cast(cython.pointer[Session], mail.pointer))
    elif kind == MAIL_PAUSE:
        pause_feeder(r, mail.number)
    elif kind == MAIL_RESUME:
        resume_feeder(r, mail.number)
    elif kind == MAIL_CONNECTION:
        _adopt(r, mail)
    elif kind == MAIL_MOVED:
        welcome(r, mail)
    elif kind == MAIL_JUDGE:
        judge_asked(r, mail)
    elif kind == MAIL_REPLAYED:
        deliver_replayed(r, mail)
    elif kind == MAIL_FED:
        feed_replay(r, mail)
    elif kind == MAIL_REVOKE:
        revoke_replay(r, mail)
    elif kind == MAIL_DISCONNECT:
        _disconnect_client(r, mail)
    elif kind == MAIL_SUBSCRIBE:
        _subscribe(r, mail)
    elif kind == MAIL_UNSUBSCRIBE:
        if r.sessions.count(mail.number) and r.sessions[mail.number].internal:
            end_session(r, r.sessions[mail.number])
    elif kind == MAIL_RULES:
        take_policy(r, mail)
    elif kind == MAIL_TOPIC_RULES:
        _take_topic_rules(r, mail)
    elif kind == MAIL_ROSTER:
        call_roll(r, mail)
    elif kind == MAIL_INQUIRY:
        answer_inquiry(r, mail)
    elif kind == MAIL_NODE:
        accept_arrived(r, mail)
    elif kind == MAIL_SETTLE:
        begin_settling(r, mail.number, mail.reason)
    elif kind == MAIL_STOP:
        _stop(r)
    else:
        _answer(r, mail)
    if mail.message != cython.NULL:
        release_message(mail.message, r.tally)
    _free_letter(r, mail)
