from libcpp.vector cimport vector

from tidemq.engine.door.engine cimport Engine
from tidemq.engine.state.mail cimport Mail

cdef class PluginAccess:
    cdef Engine engine
    cdef object filters              # that plugins have named: PLUGIN_* by filter, encoded
