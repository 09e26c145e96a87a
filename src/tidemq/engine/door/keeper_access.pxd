from libc.stdint cimport uint64_t

from tidemq.engine.door.columns cimport Columns
from tidemq.engine.door.engine cimport Engine
from tidemq.engine.state.section cimport StoredRows

cdef class StoreAccess:
    cdef Engine engine
    cdef Columns* columns            # filled for one batch after the other
    cdef set adopted                 # clients whose sessions may not be in the registry yet
    cdef unsigned char stream_marks[64]   # the address of one stands for the stream in the subscription index
    cdef unsigned int stream_count        # so many were ever added
    cdef object _check(self)
    cdef object _check_running(self)
    cdef object _send_away(self, bytes client_id, int how)
    cdef object _note_outside(self, uint64_t queue, int kind, object ids, object sizes)
    cdef object _check_stream_filters(self, object filters)
    cdef int _owner_of(self, uint64_t number) except? -2
    cdef object _mail_rows(self, int reactor, int kind, uint64_t queue, StoredRows* rows)
