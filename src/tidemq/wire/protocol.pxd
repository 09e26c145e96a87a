"""Names and numbers of MQTT as C constants. Protocol versions are those of CONNECT: 3 is MQTT 3.1, 4 is
3.1.1, 5 is 5.0."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum PacketType:
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15

cdef enum ReasonCode:  # 5.0 section 2.4
    RC_SUCCESS = 0x00
    RC_GRANTED_QOS_1 = 0x01
    RC_GRANTED_QOS_2 = 0x02
    RC_DISCONNECT_WITH_WILL = 0x04
    RC_NO_MATCHING_SUBSCRIBERS = 0x10
    RC_NO_SUBSCRIPTION_EXISTED = 0x11
    RC_CONTINUE_AUTHENTICATION = 0x18
    RC_REAUTHENTICATE = 0x19
    RC_UNSPECIFIED_ERROR = 0x80
    RC_MALFORMED_PACKET = 0x81
    RC_PROTOCOL_ERROR = 0x82
    RC_IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    RC_UNSUPPORTED_PROTOCOL_VERSION = 0x84
    RC_CLIENT_IDENTIFIER_NOT_VALID = 0x85
    RC_BAD_USER_NAME_OR_PASSWORD = 0x86
    RC_NOT_AUTHORIZED = 0x87
    RC_SERVER_UNAVAILABLE = 0x88
    RC_SERVER_BUSY = 0x89
    RC_BANNED = 0x8A
    RC_SERVER_SHUTTING_DOWN = 0x8B
    RC_BAD_AUTHENTICATION_METHOD = 0x8C
    RC_KEEP_ALIVE_TIMEOUT = 0x8D
    RC_SESSION_TAKEN_OVER = 0x8E
    RC_TOPIC_FILTER_INVALID = 0x8F
    RC_TOPIC_NAME_INVALID = 0x90
    RC_PACKET_IDENTIFIER_IN_USE = 0x91
    RC_PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RC_RECEIVE_MAXIMUM_EXCEEDED = 0x93
    RC_TOPIC_ALIAS_INVALID = 0x94
    RC_PACKET_TOO_LARGE = 0x95
    RC_MESSAGE_RATE_TOO_HIGH = 0x96
    RC_QUOTA_EXCEEDED = 0x97
    RC_ADMINISTRATIVE_ACTION = 0x98
    RC_PAYLOAD_FORMAT_INVALID = 0x99
    RC_RETAIN_NOT_SUPPORTED = 0x9A
    RC_QOS_NOT_SUPPORTED = 0x9B
    RC_USE_ANOTHER_SERVER = 0x9C
    RC_SERVER_MOVED = 0x9D
    RC_SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    RC_CONNECTION_RATE_EXCEEDED = 0x9F
    RC_MAXIMUM_CONNECT_TIME = 0xA0
    RC_SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    RC_WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2

cdef enum PropertyId:  # 5.0 section 2.2.2.2
    PROP_PAYLOAD_FORMAT = 0x01
    PROP_MESSAGE_EXPIRY = 0x02
    PROP_CONTENT_TYPE = 0x03
    PROP_RESPONSE_TOPIC = 0x08
    PROP_CORRELATION_DATA = 0x09
    PROP_SUBSCRIPTION_ID = 0x0B
    PROP_SESSION_EXPIRY = 0x11
    PROP_ASSIGNED_CLIENT_ID = 0x12
    PROP_SERVER_KEEP_ALIVE = 0x13
    PROP_AUTH_METHOD = 0x15
    PROP_AUTH_DATA = 0x16
    PROP_REQUEST_PROBLEM_INFO = 0x17
    PROP_WILL_DELAY = 0x18
    PROP_REQUEST_RESPONSE_INFO = 0x19
    PROP_RESPONSE_INFO = 0x1A
    PROP_SERVER_REFERENCE = 0x1C
    PROP_REASON_STRING = 0x1F
    PROP_RECEIVE_MAXIMUM = 0x21
    PROP_TOPIC_ALIAS_MAXIMUM = 0x22
    PROP_TOPIC_ALIAS = 0x23
    PROP_MAXIMUM_QOS = 0x24
    PROP_RETAIN_AVAILABLE = 0x25
    PROP_USER_PROPERTY = 0x26
    PROP_MAXIMUM_PACKET_SIZE = 0x27
    PROP_WILDCARD_AVAILABLE = 0x28
    PROP_SUBSCRIPTION_IDS_AVAILABLE = 0x29
    PROP_SHARED_AVAILABLE = 0x2A

# Why a packet was refused. Zero is no fault, NEED_MORE is not one either: the packet is not whole yet.
# `faults.py` gives each its reason code, specification tag and text.
cdef enum Fault:
    FAULT_NONE = 0
    FAULT_NEED_MORE = 1
    FAULT_VARINT_OVERLONG = 2          # more than four bytes, or not the shortest form
    FAULT_PACKET_TYPE = 3              # type 0, 15 below 5.0, or one that only a server sends
    FAULT_FLAGS = 4                    # a wrong flag nibble in the fixed header
    FAULT_TRUNCATED = 5                # a field reaches past the packet's end
    FAULT_TRAILING = 6                 # bytes left after the packet's last field
    FAULT_UTF8 = 7                     # ill-formed UTF-8: a surrogate, an overlong form, a cut sequence
    FAULT_NUL = 8                      # U+0000 in a string
    FAULT_PROTOCOL_NAME = 9
    FAULT_PROTOCOL_VERSION = 10
    FAULT_RESERVED_BIT = 11            # CONNECT flags bit 0, subscription option bits 6 and 7, CONNACK flags
    FAULT_WILL_FLAGS = 12              # will QoS or retain without a will, or will QoS 3
    FAULT_PASSWORD_WITHOUT_USERNAME = 13
    FAULT_CLIENT_ID = 14               # empty without clean session (3.x), longer than 23 never refused
    FAULT_QOS = 15                     # QoS 3
    FAULT_DUP_QOS_0 = 16
    FAULT_PACKET_ID_ZERO = 17
    FAULT_TOPIC_EMPTY = 18             # an empty topic name with no alias, an empty filter
    FAULT_TOPIC_WILDCARD = 19          # + or # in a topic name
    FAULT_TOPIC_FILTER = 20            # a misplaced wildcard, a malformed $share
    FAULT_TOPIC_LEVELS = 21            # more levels or bytes than the limit
    FAULT_NO_FILTERS = 22              # SUBSCRIBE or UNSUBSCRIBE with an empty payload
    FAULT_SUBSCRIPTION_OPTIONS = 23    # QoS 3 or retain handling 3
    FAULT_NO_LOCAL_SHARED = 24
    FAULT_PROPERTY_UNKNOWN = 25
    FAULT_PROPERTY_MISPLACED = 26      # not allowed in this packet
    FAULT_PROPERTY_TWICE = 27
    FAULT_PROPERTY_VALUE = 28          # a value that the standard excludes (0 where not allowed, a flag not 0 or 1)
    FAULT_AUTH_DATA_WITHOUT_METHOD = 29
    FAULT_REASON_CODE = 30             # not allowed in this packet
    FAULT_PACKET_TOO_LARGE = 31
    # the engine's: the packet is well formed and comes at the wrong time
    FAULT_BEFORE_CONNECT = 32
    FAULT_SECOND_CONNECT = 33
    FAULT_TOPIC_ALIAS = 34             # above the maximum, or not set before
    FAULT_RECEIVE_MAXIMUM = 35
    FAULT_PACKET_ID_UNKNOWN = 36
    FAULT_SESSION_EXPIRY = 37          # DISCONNECT sets an expiry where CONNECT said 0
    FAULT_AUTH_UNEXPECTED = 38
    FAULT_CONNECT_TIMEOUT = 39
    FAULT_KEEP_ALIVE = 40
    FAULT_LIMIT = 41                   # a declared limit of the broker was passed
    FAULT_TRANSPORT = 42               # below MQTT: a PROXY header, TLS, the WebSocket
    FAULT_REMOTE = 43                  # of another machine, where only this one's clients may connect
    FAULT_PACKET_LATE = 44             # a packet did not become whole in time
    FAULT_OUTPUT_STALLED = 45          # the client takes nothing of what it is sent
    FAULT_FLAPPING = 46                # connects too often
    FAULT_ACK_OF_OTHER_QOS = 47        # PUBACK for QoS 2, PUBREC or PUBCOMP for QoS 1
    FAULT_STORE = 48                   # the store fails, and this would have to be stored
    FAULT_TLS = 49                     # a TLS handshake where MQTT is spoken in clear
    FAULT_QOS_NOT_SUPPORTED = 50       # above the qos_max of the listener
    FAULT_RETAIN_NOT_SUPPORTED = 51    # RETAIN where the listener takes none
    FAULT_COUNT = 52

cdef enum:
    REMAINING_MAX = 268435455          # what a remaining length can say; some clients take no larger number for a size

# A view of bytes that somebody else owns. One that was just written is passed on by pointer: by value its padding is
# read along with `size`, and the processor waits until what was written has left its store buffer.
cdef struct Span:
    const uint8_t* data
    uint32_t size

cdef uint8_t fault_reason(Fault fault) noexcept nogil  # the 5.0 reason code that answers a fault
cdef Span span_of(bytes data)     # valid while `data` lives
cdef bytes bytes_of(Span span)    # a copy
