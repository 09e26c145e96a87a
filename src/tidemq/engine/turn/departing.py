"""Connections that go to other reactors at the end of a turn."""

import cython
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds
from cython.cimports.tidemq.engine.journal.journal import give_section
from cython.cimports.tidemq.engine.link.mail import post_directly
from cython.cimports.tidemq.engine.state.client import Connection


def _check_departing(r):
    index: cython.size_t
    for index in range(r.outgoing.size()):
        holds(r.outgoing[index].empty(), b"departing: connections go after all other mail of their turn")
    c: cython.pointer[Connection] = cython.cast(cython.pointer[Connection], r.departing.back().pointer)
    holds(r.connections[c.slot] != c, b"departing: a connection that goes has left its slot")


def post_departing(r):
    """Hands over the connections that go to other reactors; after `post_outgoing`, at the very end of the
    turn.
    """
    index: cython.size_t
    if ASSERTS and not r.departing.empty():
        _check_departing(r)
    if r.departing.size() and r.section != cython.NULL and not r.section.captured.empty():
        give_section(r)  # in streams their messages come before those of the connections' new places
    for index in range(r.departing.size()):
        post_directly(r.common.reactors[r.departing[index].hops], cython.address(r.departing[index]))
    r.departing.clear()
