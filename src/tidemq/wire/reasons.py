"""Which reason code may be in which packet: the tables of 5.0, the return codes of 3.1 and 3.1.1."""

from cython.cimports.tidemq.wire.protocol import (
    CONNACK,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    RC_ADMINISTRATIVE_ACTION,
    RC_BAD_AUTHENTICATION_METHOD,
    RC_BAD_USER_NAME_OR_PASSWORD,
    RC_BANNED,
    RC_CLIENT_IDENTIFIER_NOT_VALID,
    RC_CONNECTION_RATE_EXCEEDED,
    RC_CONTINUE_AUTHENTICATION,
    RC_DISCONNECT_WITH_WILL,
    RC_GRANTED_QOS_1,
    RC_GRANTED_QOS_2,
    RC_IMPLEMENTATION_SPECIFIC_ERROR,
    RC_KEEP_ALIVE_TIMEOUT,
    RC_MALFORMED_PACKET,
    RC_MAXIMUM_CONNECT_TIME,
    RC_MESSAGE_RATE_TOO_HIGH,
    RC_NO_MATCHING_SUBSCRIBERS,
    RC_NO_SUBSCRIPTION_EXISTED,
    RC_NOT_AUTHORIZED,
    RC_PACKET_IDENTIFIER_IN_USE,
    RC_PACKET_IDENTIFIER_NOT_FOUND,
    RC_PACKET_TOO_LARGE,
    RC_PAYLOAD_FORMAT_INVALID,
    RC_PROTOCOL_ERROR,
    RC_QOS_NOT_SUPPORTED,
    RC_QUOTA_EXCEEDED,
    RC_REAUTHENTICATE,
    RC_RECEIVE_MAXIMUM_EXCEEDED,
    RC_RETAIN_NOT_SUPPORTED,
    RC_SERVER_BUSY,
    RC_SERVER_MOVED,
    RC_SERVER_SHUTTING_DOWN,
    RC_SERVER_UNAVAILABLE,
    RC_SESSION_TAKEN_OVER,
    RC_SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
    RC_SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
    RC_SUCCESS,
    RC_TOPIC_ALIAS_INVALID,
    RC_TOPIC_FILTER_INVALID,
    RC_TOPIC_NAME_INVALID,
    RC_UNSPECIFIED_ERROR,
    RC_UNSUPPORTED_PROTOCOL_VERSION,
    RC_USE_ANOTHER_SERVER,
    RC_WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
    SUBACK,
    UNSUBACK,
)


def allowed_reason(packet_type, reason, version):
    if version != 5:
        return allowed_below_5(packet_type, reason)
    if packet_type == CONNACK:
        return allowed_in_connack(reason)
    if packet_type in (PUBACK, PUBREC):
        return allowed_in_puback(reason)
    if packet_type in (PUBREL, PUBCOMP):
        return reason in (RC_SUCCESS, RC_PACKET_IDENTIFIER_NOT_FOUND)
    if packet_type == SUBACK:
        return allowed_in_suback(reason)
    if packet_type == UNSUBACK:
        return allowed_in_unsuback(reason)
    if packet_type == DISCONNECT:
        return allowed_in_disconnect(reason)
    return reason in (RC_SUCCESS, RC_CONTINUE_AUTHENTICATION, RC_REAUTHENTICATE)


def allowed_below_5(packet_type, reason):
    """Return codes of CONNACK (3.1.1 table 3.1) and SUBACK; no other packet has one."""
    if packet_type == CONNACK:
        return reason <= 5
    return reason <= RC_GRANTED_QOS_2 or reason == RC_UNSPECIFIED_ERROR


def allowed_in_connack(reason):
    """3.2.2.2."""
    return reason in (
        RC_SUCCESS,
        RC_UNSPECIFIED_ERROR,
        RC_MALFORMED_PACKET,
        RC_PROTOCOL_ERROR,
        RC_IMPLEMENTATION_SPECIFIC_ERROR,
        RC_UNSUPPORTED_PROTOCOL_VERSION,
        RC_CLIENT_IDENTIFIER_NOT_VALID,
        RC_BAD_USER_NAME_OR_PASSWORD,
        RC_NOT_AUTHORIZED,
        RC_SERVER_UNAVAILABLE,
        RC_SERVER_BUSY,
        RC_BANNED,
        RC_BAD_AUTHENTICATION_METHOD,
        RC_TOPIC_NAME_INVALID,
        RC_PACKET_TOO_LARGE,
        RC_QUOTA_EXCEEDED,
        RC_PAYLOAD_FORMAT_INVALID,
        RC_RETAIN_NOT_SUPPORTED,
        RC_QOS_NOT_SUPPORTED,
        RC_USE_ANOTHER_SERVER,
        RC_SERVER_MOVED,
        RC_CONNECTION_RATE_EXCEEDED,
    )


def allowed_in_puback(reason):
    """3.4.2.1 and 3.5.2.1."""
    return reason in (
        RC_SUCCESS,
        RC_NO_MATCHING_SUBSCRIBERS,
        RC_UNSPECIFIED_ERROR,
        RC_IMPLEMENTATION_SPECIFIC_ERROR,
        RC_NOT_AUTHORIZED,
        RC_TOPIC_NAME_INVALID,
        RC_PACKET_IDENTIFIER_IN_USE,
        RC_QUOTA_EXCEEDED,
        RC_PAYLOAD_FORMAT_INVALID,
    )


def allowed_in_suback(reason):
    """3.9.3."""
    return reason in (
        RC_SUCCESS,
        RC_GRANTED_QOS_1,
        RC_GRANTED_QOS_2,
        RC_UNSPECIFIED_ERROR,
        RC_IMPLEMENTATION_SPECIFIC_ERROR,
        RC_NOT_AUTHORIZED,
        RC_TOPIC_FILTER_INVALID,
        RC_PACKET_IDENTIFIER_IN_USE,
        RC_QUOTA_EXCEEDED,
        RC_SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
        RC_SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
        RC_WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
    )


def allowed_in_unsuback(reason):
    """3.11.3."""
    return reason in (
        RC_SUCCESS,
        RC_NO_SUBSCRIPTION_EXISTED,
        RC_UNSPECIFIED_ERROR,
        RC_IMPLEMENTATION_SPECIFIC_ERROR,
        RC_NOT_AUTHORIZED,
        RC_TOPIC_FILTER_INVALID,
        RC_PACKET_IDENTIFIER_IN_USE,
    )


def allowed_in_disconnect(reason):
    """3.14.2.1; and BAD_AUTHENTICATION_METHOD, which only section 2.4 names."""
    return reason in (
        RC_SUCCESS,
        RC_DISCONNECT_WITH_WILL,
        RC_UNSPECIFIED_ERROR,
        RC_MALFORMED_PACKET,
        RC_PROTOCOL_ERROR,
        RC_IMPLEMENTATION_SPECIFIC_ERROR,
        RC_NOT_AUTHORIZED,
        RC_SERVER_BUSY,
        RC_SERVER_SHUTTING_DOWN,
        RC_BAD_AUTHENTICATION_METHOD,
        RC_KEEP_ALIVE_TIMEOUT,
        RC_SESSION_TAKEN_OVER,
        RC_TOPIC_FILTER_INVALID,
        RC_TOPIC_NAME_INVALID,
        RC_RECEIVE_MAXIMUM_EXCEEDED,
        RC_TOPIC_ALIAS_INVALID,
        RC_PACKET_TOO_LARGE,
        RC_MESSAGE_RATE_TOO_HIGH,
        RC_QUOTA_EXCEEDED,
        RC_ADMINISTRATIVE_ACTION,
        RC_PAYLOAD_FORMAT_INVALID,
        RC_RETAIN_NOT_SUPPORTED,
        RC_QOS_NOT_SUPPORTED,
        RC_USE_ANOTHER_SERVER,
        RC_SERVER_MOVED,
        RC_SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
        RC_CONNECTION_RATE_EXCEEDED,
        RC_MAXIMUM_CONNECT_TIME,
        RC_SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
        RC_WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
    )
