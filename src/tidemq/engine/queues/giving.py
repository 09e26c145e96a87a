"""Messages of a shared group that are given to its members again, for the node that queued them is dead, or
has no member online any more.

They are routed as if they had been published, to the group alone, and under new ids: who takes one adds it to
a queue of its own. When that is kept the store's thread is told, and removes it where it waited.
"""

import cython
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.message import Passage, close_passage, open_passage
from cython.cimports.tidemq.engine.journal.journal import next_id, tell_store
from cython.cimports.tidemq.engine.journal.ledger import next_token
from cython.cimports.tidemq.engine.queues.promises import promise_node
from cython.cimports.tidemq.engine.queues.routing import route_to_group
from cython.cimports.tidemq.engine.state.nodes import NODES_MAX
from cython.cimports.tidemq.engine.state.section import RECORD_GIVEN, Record
from cython.cimports.tidemq.wire.topics import SharedFilter, split_shared


def give_to_group(r, message, group, token):
    """``group``: `$share/group/filter`. ``token``: what ``tell_given`` names when it is kept."""
    passage: Passage
    if r.section == cython.NULL:
        return  # the engine has ended
    parts: SharedFilter = split_shared(group)
    message.id = next_id(r)
    open_passage(cython.address(passage), message)
    passage.feeder = 0
    passage.token = next_token(r)
    route_to_group(r, cython.address(passage), parts.filter, parts.group, True)
    if passage.kept or passage.answers:
        promise_node(r, cython.address(passage), NODES_MAX, token, cython.NULL)
    else:
        tell_given(r, token, passage.refused)
    close_passage(cython.address(passage), r.tally)


def tell_given(r, token, reason):
    """It is kept, or with a reason code it is not."""
    nameless: string
    record: cython.pointer[Record] = tell_store(r, RECORD_GIVEN, cython.address(nameless))
    record.sequence = token
    record.status = reason
