"""Messages that a stream keeps, for a client that subscribes to them below `$stream/`.

The control plane finds and encodes them and hands over a piece at a time; it is told when that is out, so a
client gets them as fast as it reads, and no more than a piece waits here. Such a filter is in no subscription
index and in no session: it ends with the connection.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint32_t
from cython.cimports.libc.string import memcmp
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import C_MESSAGES_SENT
from cython.cimports.tidemq.engine.base.event import EVENT_DELIVERED, EVENT_UNSUBSCRIBE, Event
from cython.cimports.tidemq.engine.link.output import append_output, touch
from cython.cimports.tidemq.engine.link.reports import new_event, post_event
from cython.cimports.tidemq.engine.state.client import Connection
from cython.cimports.tidemq.engine.state.handles import connection_of, handle_of
from cython.cimports.tidemq.wire.packets import next_filter
from cython.cimports.tidemq.wire.protocol import Span

_PREFIX_SIZE = cython.declare(uint32_t, 8)


def names_stream(filter):
    """Whether the filter asks for what a stream keeps."""
    return filter.size > _PREFIX_SIZE and memcmp(filter.data, cython.cast(cython.p_char, b"$stream/"), 8) == 0


def asks_for_stream(filters):
    """The same of any of a SUBSCRIBE packet's filters."""
    filter: Span
    options: uint8_t
    while next_filter(cython.address(filters), True, cython.address(filter), cython.address(options)):
        if names_stream(filter):
            return True
    return False


def report_unsubscribed(r, c, filter):
    """Tells the control plane that the client wants no more of it."""
    event: cython.pointer[Event] = new_event(EVENT_UNSUBSCRIBE, handle_of(r, c))
    event.text.assign(cython.cast(cython.p_char, filter.data), filter.size)
    post_event(r.common, event)


def deliver_replayed(r, mail):
    """Puts packets into the client's output; where it has gone, that is said at once."""
    c: cython.pointer[Connection] = connection_of(r, mail.number)
    if c == cython.NULL or c.doomed or not c.replays:
        event: cython.pointer[Event] = new_event(EVENT_DELIVERED, mail.number)
        event.flag = True
        post_event(r.common, event)
        return
    holds(not c.delivered, b"replaying: the next piece comes when the last one is out")
    append_output(r, c, mail.letter.data.data(), cython.cast(uint32_t, mail.letter.data.size()))
    r.tally[C_MESSAGES_SENT] += mail.token
    c.delivered = True
    touch(r, c)


def report_delivered(r, c, gone):
    """What was delivered last is out, or never will be."""
    holds(c.delivered, b"replaying: what is reported was delivered")
    c.delivered = False
    event: cython.pointer[Event] = new_event(EVENT_DELIVERED, handle_of(r, c))
    event.flag = gone
    post_event(r.common, event)
