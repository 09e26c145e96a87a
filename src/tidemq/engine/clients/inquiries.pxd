from tidemq.engine.base.inquiry cimport Inquiry, ListedMessage
from tidemq.engine.base.message cimport Message
from tidemq.engine.index.levels cimport LevelNode
from tidemq.engine.index.retained_index cimport RetainedWalk
from tidemq.engine.index.subscribers cimport Subscription
from tidemq.engine.state.client cimport Session
from tidemq.engine.state.mail cimport Mail
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.protocol cimport Span

cdef void answer_inquiry(Reactor* r, Mail* mail) noexcept nogil

# of this module alone
cdef bint _is_enough(const Inquiry* q) noexcept nogil
cdef ListedMessage _listed(Reactor* r, const Inquiry* q, const Message* message) noexcept nogil
cdef void _add_retained(Reactor* r, Inquiry* q, Message* message) noexcept nogil
cdef bint _take_slice(Reactor* r, Inquiry* q, RetainedWalk* walk) noexcept nogil
cdef void _walk_retained(Reactor* r, Inquiry* q) noexcept nogil
cdef void _add_subscriber(Reactor* r, Inquiry* q, const Subscription* item, LevelNode* node, Span group) noexcept nogil
cdef void _add_held(Reactor* r, Inquiry* q, const Subscription* item, LevelNode* node) noexcept nogil
cdef void _list_node(Reactor* r, Inquiry* q, LevelNode* node) noexcept nogil
cdef void _list_subscribed(Reactor* r, Inquiry* q) noexcept nogil
cdef void _list_matching(Reactor* r, Inquiry* q) noexcept nogil
cdef void _list_queue(Reactor* r, Inquiry* q, Session* s) noexcept nogil
cdef void _end_session(Reactor* r, Session* s) noexcept nogil
cdef bint _act_on_client(Reactor* r, Mail* mail, Inquiry* q) noexcept nogil
