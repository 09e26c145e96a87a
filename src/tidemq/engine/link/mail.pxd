from libc.stdint cimport uint16_t, uint64_t, uint8_t
from libcpp.vector cimport vector

from tidemq.engine.base.message cimport Message
from tidemq.engine.state.mail cimport Letter, Mail
from tidemq.engine.state.reactor cimport Reactor

cdef Mail new_mail(uint8_t kind) noexcept nogil
cdef Letter* new_letter() noexcept nogil
cdef void free_letter(Letter* letter) noexcept nogil
cdef Mail* send_message_mail(Reactor* r, uint16_t target, uint8_t kind, Message* message) noexcept nogil
cdef void send_number_mail(Reactor* r, uint16_t target, uint8_t kind, uint64_t number) noexcept nogil
cdef void wake(Reactor* target) noexcept nogil
cdef void post_outgoing(Reactor* r) noexcept nogil
cdef void post_directly(Reactor* target, const Mail* mail) noexcept nogil
cdef void post_all(Reactor* target, vector[Mail]* mails) noexcept nogil
cdef void take_inbox(Reactor* r) noexcept nogil
