"""A listener as the reactors see it. Layout only; no code."""
from libc.stdint cimport int64_t, uint8_t
from libcpp cimport bool
from libcpp.string cimport string

from tidemq.engine.base.engine_limits cimport Rates, Usage
from tidemq.engine.base.system cimport pthread_mutex_t
from tidemq.net.transport cimport Terms

cdef cppclass Listener:          # constant once the reactors run, but for what names its lock
    string name
    uint8_t versions             # bit mask: 1 << protocol version
    bool asks                    # the control plane decides on each CONNECT
    bool local_only              # clients of this machine only
    uint8_t qos_max              # of what its clients publish
    bool retain_available        # its clients may have messages retained
    bool client_id_required      # whoever brings none is refused
    int64_t connections_max      # 0: as many as the broker takes
    int64_t connection_count     # atomic
    int64_t connections_per_address_max   # 0: any number
    bool proxied                 # clients' addresses are in PROXY headers
    bool secure                  # TLS
    Rates rates
    Usage usage                  # atomic
    int64_t connects_ns          # atomic: when the connections taken are paid for, see rates
    pthread_mutex_t terms_lock
    const Terms* terms           # what its connections are wrapped in; NULL: nothing. Under terms_lock

cdef struct ListeningSocket:
    int fd
    Listener* listener
    bool alone                   # one reactor's
