from tidemq.engine.state cimport Mail, Reactor

cdef void handle_mail(Reactor* r, Mail* mail) noexcept nogil
cdef void settle_mail(Reactor* r, Mail* mail) noexcept nogil
