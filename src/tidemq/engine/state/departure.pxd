"""How a session leaves: the reason of MAIL_RELEASE. Layout only."""

cdef enum:
    FORGET, HAND_OVER, TAKE_BACK   # the last: it stays after all
