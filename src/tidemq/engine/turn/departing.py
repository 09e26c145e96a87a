"""Connections that go to other reactors at the end of a turn."""

import cython
from cython.cimports.tidemq.engine.journal.journal import give_section
from cython.cimports.tidemq.engine.link.mail import post_directly


def post_departing(r):
    """Hands over the connections that go to other reactors; after `post_outgoing`, at the very end of the
    turn.
    """
    index: cython.size_t
    if r.departing.size() and r.section != cython.NULL and not r.section.captured.empty():
        give_section(r)  # in streams their messages come before those of the connections' new places
    for index in range(r.departing.size()):
        post_directly(r.common.reactors[r.departing[index].hops], cython.address(r.departing[index]))
    r.departing.clear()
