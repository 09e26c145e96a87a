from tidemq.engine.state.state cimport Mail, Reactor

cdef void handle_mail(Reactor* r, Mail* mail) noexcept nogil
cdef void settle_mail(Reactor* r, Mail* mail) noexcept nogil

# of this module alone
cdef void _adopt(Reactor* r, Mail* mail) noexcept nogil
cdef void _answer(Reactor* r, Mail* mail) noexcept nogil
cdef void _disconnect(Reactor* r, Mail* mail) noexcept nogil
cdef void _subscribe(Reactor* r, Mail* mail) noexcept nogil
cdef void _take_rows(Reactor* r, Mail* mail) noexcept nogil
cdef void _stop(Reactor* r) noexcept nogil
cdef void _free_letter(Reactor* r, Mail* mail) noexcept nogil
