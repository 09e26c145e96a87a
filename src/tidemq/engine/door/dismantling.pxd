from tidemq.engine.state.reactor cimport Common

cdef object settle_all_mail(Common* common)
cdef object empty_common(Common* common)
cdef object free_common(Common* common)

# of this module alone
cdef object _free_retained(Common* common)
