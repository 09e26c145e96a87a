from tidemq.engine.door.engine cimport Engine

cdef class EngineView:
    cdef Engine engine
    cdef object _histogram(self, int which)
    cdef object _reactor(self, int index)
