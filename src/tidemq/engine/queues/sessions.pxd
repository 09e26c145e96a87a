from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libcpp.string cimport string
from libcpp.string_view cimport string_view

from tidemq.engine.state.arrival cimport StoredSession
from tidemq.engine.state.client cimport Session, SessionSubscription
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.protocol cimport Span

cdef struct Found:
    Session* session
    uint16_t reactor     # its owner
    bint created
    bint moving          # on its way to `reactor`: try again there
    bint removal         # the store has not forgotten an earlier one yet

cdef Found find_session(Reactor* r, const string* client_id, bint create) noexcept nogil
cdef Session* restore_session(Reactor* r, const StoredSession* row) noexcept nogil
cdef void count_delayed(Reactor* r, Session* s) noexcept nogil
cdef bint is_delayed(const string* client_id) noexcept nogil
cdef Session* new_session(Reactor* r) noexcept nogil
cdef void store_session(Reactor* r, Session* s) noexcept nogil
cdef bint end_removals(Reactor* r) noexcept nogil
cdef void end_session(Reactor* r, Session* s) noexcept nogil
cdef void forget_session(Reactor* r, Session* s) noexcept nogil
cdef void continue_ending(Reactor* r, size_t subscriptions_max) noexcept nogil
cdef void set_online(Reactor* r, Session* s, bint online) noexcept nogil
cdef uint8_t add_subscription(Reactor* r, Session* s, Span filter, uint8_t options, uint32_t subscription_id, bint* wants_retained) noexcept nogil
cdef void finish_backlog(Reactor* r, Session* s, const string* filter) noexcept nogil
cdef uint16_t subscription_turn(Session* s, Span filter) noexcept nogil   # 0: there is none
cdef bint drop_subscription(Reactor* r, Session* s, Span filter) noexcept nogil
cdef string assigned_client_id(Reactor* r) noexcept nogil

# of this module alone
cdef string_view _view(Session* s) noexcept nogil
cdef bint _claim(Reactor* r, Session* s, Span filter) noexcept nogil
cdef void _give_up(Reactor* r, Session* s, Span filter) noexcept nogil
cdef void _drop_other_form(Reactor* r, Session* s, Span filter, bint exclusive) noexcept nogil
cdef bint _is_loading(Reactor* r) noexcept nogil
cdef Session* _register(Reactor* r, const string* client_id, uint64_t number) noexcept nogil
cdef bint _comes_back(Reactor* r, const Session* s) noexcept nogil
cdef void _forget_session(Reactor* r, Session* s, bint ends) noexcept nogil
cdef void _unstore_session(Reactor* r, Session* s) noexcept nogil
cdef void _begin_removal(Reactor* r, Session* s) noexcept nogil
cdef void _delete_subscription(Reactor* r, Session* s, const string* filter) noexcept nogil
cdef void _put_subscription(
    Reactor* r, Session* s, const string* filter, const SessionSubscription* subscription, bint served,
) noexcept nogil
cdef size_t _withdraw(Reactor* r, Session* s, size_t subscriptions_max) noexcept nogil
cdef void _begin_ending(Reactor* r, Session* s) noexcept nogil
cdef void _free_session(Reactor* r, Session* s) noexcept nogil
cdef bint _has_room(Reactor* r, Session* s) noexcept nogil
cdef int64_t _subscription_bytes(Span filter) noexcept nogil
