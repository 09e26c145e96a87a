"""How a session leaves: the reason of MAIL_RELEASE. Layout only."""

cdef enum:
    FORGET, HAND_OVER, TAKE_BACK, LOSE   # the last but one: it stays after all; the last: handed over without a word
