"""Names and numbers of MQTT (see protocol.pxd), the reason code that answers each fault, views of bytes."""

import cython
from cython.cimports.libc.stdint import uint32_t
from cython.cimports.tidemq.wire.protocol import (
    FAULT_CLIENT_ID,
    FAULT_DUP_QOS_0,
    FAULT_FLAGS,
    FAULT_FLAPPING,
    FAULT_KEEP_ALIVE,
    FAULT_LIMIT,
    FAULT_NEED_MORE,
    FAULT_NONE,
    FAULT_NUL,
    FAULT_OUTPUT_STALLED,
    FAULT_PACKET_LATE,
    FAULT_PACKET_TOO_LARGE,
    FAULT_PASSWORD_WITHOUT_USERNAME,
    FAULT_PROPERTY_MISPLACED,
    FAULT_PROPERTY_UNKNOWN,
    FAULT_PROTOCOL_NAME,
    FAULT_PROTOCOL_VERSION,
    FAULT_QOS,
    FAULT_QOS_NOT_SUPPORTED,
    FAULT_RECEIVE_MAXIMUM,
    FAULT_REMOTE,
    FAULT_RESERVED_BIT,
    FAULT_RETAIN_NOT_SUPPORTED,
    FAULT_STORE,
    FAULT_TOPIC_ALIAS,
    FAULT_TOPIC_FILTER,
    FAULT_TOPIC_LEVELS,
    FAULT_TOPIC_WILDCARD,
    FAULT_TRAILING,
    FAULT_TRUNCATED,
    FAULT_UTF8,
    FAULT_VARINT_OVERLONG,
    FAULT_WILL_FLAGS,
    RC_CLIENT_IDENTIFIER_NOT_VALID,
    RC_CONNECTION_RATE_EXCEEDED,
    RC_IMPLEMENTATION_SPECIFIC_ERROR,
    RC_KEEP_ALIVE_TIMEOUT,
    RC_MALFORMED_PACKET,
    RC_NOT_AUTHORIZED,
    RC_PACKET_TOO_LARGE,
    RC_PROTOCOL_ERROR,
    RC_QOS_NOT_SUPPORTED,
    RC_QUOTA_EXCEEDED,
    RC_RECEIVE_MAXIMUM_EXCEEDED,
    RC_RETAIN_NOT_SUPPORTED,
    RC_SUCCESS,
    RC_TOPIC_ALIAS_INVALID,
    RC_TOPIC_FILTER_INVALID,
    RC_TOPIC_NAME_INVALID,
    RC_UNSUPPORTED_PROTOCOL_VERSION,
    Fault,
    Span,
)


def fault_reason(fault):
    """The reason code for a CONNACK or DISCONNECT (5.0 section 4.13); 0 where `fault` is none.

    A packet that cannot be read is malformed; one that can be, but says what is not allowed, is a protocol
    error.
    """
    if fault in (FAULT_NONE, FAULT_NEED_MORE):
        return RC_SUCCESS
    if fault in (
        FAULT_VARINT_OVERLONG,
        FAULT_FLAGS,
        FAULT_TRUNCATED,
        FAULT_TRAILING,
        FAULT_UTF8,
        FAULT_NUL,
        FAULT_RESERVED_BIT,
        FAULT_WILL_FLAGS,
        FAULT_PASSWORD_WITHOUT_USERNAME,
        FAULT_QOS,
        FAULT_DUP_QOS_0,
        FAULT_PROPERTY_UNKNOWN,
        FAULT_PROPERTY_MISPLACED,
    ):
        return RC_MALFORMED_PACKET
    if fault in (FAULT_PROTOCOL_NAME, FAULT_PROTOCOL_VERSION):
        return RC_UNSUPPORTED_PROTOCOL_VERSION
    if fault == FAULT_CLIENT_ID:
        return RC_CLIENT_IDENTIFIER_NOT_VALID
    if fault in (FAULT_TOPIC_WILDCARD, FAULT_TOPIC_LEVELS):
        return RC_TOPIC_NAME_INVALID
    if fault == FAULT_TOPIC_FILTER:
        return RC_TOPIC_FILTER_INVALID
    if fault == FAULT_TOPIC_ALIAS:
        return RC_TOPIC_ALIAS_INVALID
    if fault == FAULT_RECEIVE_MAXIMUM:
        return RC_RECEIVE_MAXIMUM_EXCEEDED
    if fault == FAULT_PACKET_TOO_LARGE:
        return RC_PACKET_TOO_LARGE
    if fault == FAULT_KEEP_ALIVE:
        return RC_KEEP_ALIVE_TIMEOUT
    if fault == FAULT_FLAPPING:
        return RC_CONNECTION_RATE_EXCEEDED
    if fault in (FAULT_LIMIT, FAULT_PACKET_LATE, FAULT_OUTPUT_STALLED):
        return RC_QUOTA_EXCEEDED
    if fault == FAULT_QOS_NOT_SUPPORTED:
        return RC_QOS_NOT_SUPPORTED
    if fault == FAULT_RETAIN_NOT_SUPPORTED:
        return RC_RETAIN_NOT_SUPPORTED
    if fault == FAULT_STORE:
        return RC_IMPLEMENTATION_SPECIFIC_ERROR
    if fault == FAULT_REMOTE:
        return RC_NOT_AUTHORIZED
    return RC_PROTOCOL_ERROR


def reason_of_fault(fault: cython.int) -> cython.int:
    """`fault_reason` for Python."""
    return fault_reason(cython.cast(Fault, fault))


def span_of(data):
    """A view of a bytes object, valid as long as the object lives."""
    span = cython.declare(Span)
    span.data = data
    span.size = cython.cast(uint32_t, len(data))
    return span


def bytes_of(span):
    """A copy of a view as a bytes object."""
    return span.data[: span.size]
