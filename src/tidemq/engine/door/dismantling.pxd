from tidemq.engine.state.state cimport Shared

cdef object settle_all_mail(Shared* shared)
cdef object empty_shared(Shared* shared)
cdef object free_shared(Shared* shared)

# of this module alone
cdef object _free_retained(Shared* shared)
