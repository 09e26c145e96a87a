"""Clients that connect too often are not let in for a while, without a question to anybody.

Only who was let in is counted, so nobody gets a client banned as which it may not connect; who is banned is
refused before the control plane is asked.
"""

import cython
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import C_CLIENTS_BANNED, C_REFUSED_FLAPPING
from cython.cimports.tidemq.engine.base.engine_limits import EngineLimits
from cython.cimports.tidemq.engine.base.guarding import address_of_socket, is_banned, note_visit, visitor_of
from cython.cimports.tidemq.engine.link.visits import is_bridge


def may_visit(r, c, client_id):
    """Whether the client is not banned. One that leaves the choice of its identifier to us never is; where an
    authenticator chooses it, this is asked again. Bridges are not counted.
    """
    if r.common.limits.flapping_connects_max == 0 or client_id.size == 0 or is_bridge(c):
        return True
    address: uint64_t = c.address
    if address == 0 and not c.listener.proxied:
        address = address_of_socket(c.fd)
    c.visitor = visitor_of(cython.address(r.common.guard), client_id, address)
    if is_banned(cython.address(r.common.guard), c.visitor, r.now_ms):
        r.tally[C_REFUSED_FLAPPING] += 1
        return False
    return True


def count_visit(r, c):
    """The client may connect, by all other rules. False: it does so too often."""
    limits: cython.pointer[EngineLimits] = cython.address(r.common.limits)
    holds(c.session == cython.NULL, b"visits: a client is counted before it has a session")
    if c.visitor == 0 or note_visit(
        cython.address(r.common.guard),
        c.visitor,
        r.now_ms,
        limits.flapping_connects_max,
        limits.flapping_window_ms,
        limits.flapping_ban_ms,
        limits.flapping_clients_max,
    ):
        return True
    r.tally[C_CLIENTS_BANNED] += 1
    r.tally[C_REFUSED_FLAPPING] += 1
    return False
