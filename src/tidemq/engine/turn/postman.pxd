from tidemq.engine.state.mail cimport Mail
from tidemq.engine.state.reactor cimport Reactor

cdef void handle_mail(Reactor* r, Mail* mail) noexcept nogil
cdef void settle_mail(Reactor* r, Mail* mail) noexcept nogil

# of this module alone
cdef void _adopt(Reactor* r, Mail* mail) noexcept nogil
cdef void _answer(Reactor* r, Mail* mail) noexcept nogil
cdef void _disconnect_client(Reactor* r, Mail* mail) noexcept nogil
cdef void _subscribe(Reactor* r, Mail* mail) noexcept nogil
cdef void _take_topic_rules(Reactor* r, Mail* mail) noexcept nogil
cdef void _take_rows(Reactor* r, Mail* mail) noexcept nogil
cdef void _stop(Reactor* r) noexcept nogil
cdef void _free_letter(Reactor* r, Mail* mail) noexcept nogil
