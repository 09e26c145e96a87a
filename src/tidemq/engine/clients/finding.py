"""Before a CONNECT finds or makes its session: the control plane may want to bring it here first, from
another node. Meanwhile the client is not read from. What it was let in as is kept with its identity.
"""

import cython
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.event import EVENT_SESSION, Event
from cython.cimports.tidemq.engine.clients.authorising import identity_of
from cython.cimports.tidemq.engine.clients.wishes import wanted_expiry_s
from cython.cimports.tidemq.engine.link.output import touch
from cython.cimports.tidemq.engine.link.reports import connection_event, post_event
from cython.cimports.tidemq.engine.state.client import FINDING, Identity


def _keep(c, client_id, auth_data):
    who: cython.pointer[Identity] = identity_of(c)
    holds(who.session_name == cython.NULL, b"finding: a session is asked for once")
    name: unique_ptr[string] = make_unique[string](client_id[0])
    who.session_name = name.release()
    if auth_data != cython.NULL:
        data: unique_ptr[string] = make_unique[string](auth_data[0])
        who.session_data = data.release()


def ask_for_session(r, c, client_id, connect, auth_data):
    """An event goes up; ``connecting.answer_session`` takes the answer."""
    _keep(c, client_id, auth_data)
    c.state = FINDING
    c.asked = True
    touch(r, c)
    event: cython.pointer[Event] = connection_event(r, c, EVENT_SESSION)
    event.client_id = client_id[0]
    event.flag = connect.clean_start
    event.number = wanted_expiry_s(connect)
    post_event(r.common, event)
