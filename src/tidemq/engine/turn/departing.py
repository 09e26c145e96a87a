"""Connections that go to other reactors at the end of a turn."""

import cython
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds
from cython.cimports.tidemq.engine.journal.journal import give_section
from cython.cimports.tidemq.engine.link.mail import post_directly
from cython.cimports.tidemq.engine.state.client import Connection
from cython.cimports.tidemq.engine.state.mail import MAIL_MOVED


def _check_departing(r):
    index: cython.size_t
    for index in range(r.outgoing.size()):
        holds(r.outgoing[index].empty(), b"departing: connections go after all other mail of their turn")
    c: cython.pointer[Connection] = cython.cast(cython.pointer[Connection], r.departing.back().pointer)
    holds(r.connections[c.slot] != c, b"departing: a connection that goes has left its slot")


def _is_about_these(r):
    """Whether the open section has something of those that depart, which comes before all that they do at
    their new places: messages for streams, or rows of their sessions.
    """
    index: cython.size_t
    if r.section == cython.NULL or r.section.records.empty():
        return False
    for index in range(r.departing.size()):
        if not r.section.captured.empty() or r.departing[index].kind == MAIL_MOVED:
            return True
    return False


def post_departing(r):
    """Hands over the connections that go to other reactors; after `post_outgoing`, at the very end of the
    turn.
    """
    index: cython.size_t
    if ASSERTS and not r.departing.empty():
        _check_departing(r)
    if _is_about_these(r):
        give_section(r)
    for index in range(r.departing.size()):
        post_directly(r.common.reactors[r.departing[index].hops], cython.address(r.departing[index]))
    r.departing.clear()
