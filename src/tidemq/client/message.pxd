"""An application message; what is not public is for the modules of the client."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t

cdef class Message:
    cdef readonly str topic
    cdef readonly bytes payload
    cdef readonly uint8_t qos
    cdef readonly bint retain
    cdef readonly bint dup
    cdef uint16_t packet_id   # to be acknowledged with; 0 at QoS 0
    cdef uint32_t connection  # the number of the connection that it came on; 0: nothing is to be acknowledged
    cdef uint32_t holders     # queues that hold it
    cdef uint32_t owed        # queues whose program is not done with it
    cdef bytes block          # properties without their length; None: no properties
    cdef object decoded       # the same, once somebody asked

cdef Py_ssize_t size_of(Message message) noexcept  # what it counts for in a queue, in bytes
cdef bytes property_block(object properties)  # None for none; UsageError where a PUBLISH may not have them
