cdef enum:
    LEVELS_MAX = 0x10000   # more than a topic filter can have
