from tidemq.engine.state cimport Shared

cdef list take_snapshot(Shared* shared)
cdef object restore_snapshot(Shared* shared, object entries)
