"""What a reactor waits for, told to epoll."""

import cython
from cython.cimports.tidemq.engine.base.system import (
    EPOLL_CTL_ADD,
    EPOLLIN,
    epoll_ctl,
    epoll_event,
)


def watch(r, fd, key, options):
    """Tells of what can be read there with the key's events."""
    event: epoll_event
    event.events = EPOLLIN | options
    event.data.u64 = key
    epoll_ctl(r.epoll, EPOLL_CTL_ADD, fd, cython.address(event))
