"""Every packet is read back as it was written, in every version, however its bytes are split."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples

from tidemq.errors import ProtocolError
from tidemq.wire import (
    NO_PROPERTIES,
    Auth,
    Connack,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    decode,
    decode_properties,
    encode,
    encode_properties,
)

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
level = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#/"), max_size=6)
topic = st.lists(level, min_size=1, max_size=5).map("/".join).filter(bool)
plain_filter = st.lists(level | st.just("+"), min_size=1, max_size=5).flatmap(
    lambda levels: st.sampled_from(["/".join(levels), "/".join([*levels, "#"])])
)
plain_filter = plain_filter.filter(lambda f: f and not f.startswith("$share/"))
shared_filter = st.tuples(level.filter(bool), plain_filter).map(lambda parts: f"$share/{parts[0]}/{parts[1]}")
topic_filter = plain_filter | shared_filter
binary = st.binary(max_size=20)
qos = st.integers(0, 2)
packet_id = st.integers(1, 0xFFFF)
u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFFFFFF)
flag = st.booleans()
user_properties = st.lists(st.tuples(text, text), max_size=3).map(tuple)
subscription_id = st.integers(1, 268_435_455)


def properties_of(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Properties]:
    """Any of the fields, or none; every packet of 5.0 may have user properties."""
    repeatable = {"user_properties": user_properties}
    if "subscription_ids" in fields:
        repeatable["subscription_ids"] = fields.pop("subscription_ids")
    optional = {name: st.none() | values for name, values in fields.items()}
    return st.just(NO_PROPERTIES) | st.builds(Properties, **optional, **repeatable)


def with_auth(properties: Properties) -> bool:
    return properties.auth_data is None or properties.auth_method is not None


message = {
    "payload_format": st.integers(0, 1),
    "message_expiry_s": u32,
    "content_type": text,
    "response_topic": topic,
    "correlation_data": binary,
}
limits = {
    "session_expiry_s": u32,
    "receive_maximum": st.integers(1, 0xFFFF),
    "topic_alias_maximum": u16,
    "maximum_packet_size": st.integers(1, 0xFFFFFFFF),
    "auth_method": text,
    "auth_data": binary,
}
PROPERTIES = {
    Connect: properties_of(**limits, request_problem_info=flag, request_response_info=flag).filter(with_auth),
    Will: properties_of(**message, will_delay_s=u32),
    Connack: properties_of(
        **limits,
        assigned_client_id=text,
        server_keep_alive_s=u16,
        response_info=text,
        server_reference=text,
        reason_string=text,
        maximum_qos=st.integers(0, 1),
        retain_available=flag,
        wildcard_available=flag,
        subscription_ids_available=flag,
        shared_available=flag,
    ).filter(with_auth),
    Publish: properties_of(
        **message,
        topic_alias=st.integers(1, 0xFFFF),
        subscription_ids=st.lists(subscription_id, max_size=3).map(tuple),
    ),
    Subscribe: properties_of(subscription_ids=st.lists(subscription_id, max_size=1).map(tuple)),
    Unsubscribe: properties_of(),
    Disconnect: properties_of(session_expiry_s=u32, server_reference=text, reason_string=text),
    Auth: properties_of(auth_method=text, auth_data=binary, reason_string=text).filter(with_auth),
}
ANSWER = properties_of(reason_string=text)

CONNACK_REASONS = bytes.fromhex("00 80 81 82 83 84 85 86 87 88 89 8a 8c 90 95 97 99 9a 9b 9c 9d 9f")
SUBACK_REASONS = bytes.fromhex("00 01 02 80 83 87 8f 91 97 9e a1 a2")


def of(version: int, kind: Any) -> st.SearchStrategy[Properties]:
    return st.just(NO_PROPERTIES) if version < 5 else PROPERTIES.get(kind, ANSWER)


def connects(version: int) -> st.SearchStrategy[Packet]:
    will = st.builds(Will, topic=topic, payload=binary, qos=qos, retain=flag, properties=of(version, Will))
    packets = st.builds(
        Connect,
        version=st.just(version),
        client_id=text if version == 5 else text.filter(bool),
        clean_start=flag,
        keep_alive_s=u16,
        will=st.none() | will,
        username=st.none() | text,
        password=st.none() | binary,
        properties=of(version, Connect),
    )
    return packets.filter(lambda p: version == 5 or p.username is not None or p.password is None)


def publishes(version: int) -> st.SearchStrategy[Packet]:
    shared = {"topic": topic, "payload": binary, "retain": flag, "properties": of(version, Publish)}
    at_0 = st.builds(Publish, **shared)
    above = st.builds(Publish, **shared, qos=st.integers(1, 2), packet_id=packet_id, dup=flag)
    return at_0 | above


def subscribes(version: int) -> st.SearchStrategy[Packet]:
    below_5 = st.builds(Subscription, filter=topic_filter, qos=qos)
    options = {"qos": qos, "retain_as_published": flag, "retain_handling": st.integers(0, 2)}
    of_5 = st.builds(Subscription, filter=shared_filter, **options)
    of_5 |= st.builds(Subscription, filter=plain_filter, no_local=flag, **options)
    subscriptions = st.lists(of_5 if version == 5 else below_5, min_size=1, max_size=4).map(tuple)
    return st.builds(
        Subscribe, packet_id=packet_id, subscriptions=subscriptions, properties=of(version, Subscribe)
    )


def answers(version: int) -> st.SearchStrategy[Packet]:
    acks = []
    for kind, reasons in (
        (Puback, b"\0\x10\x80"),
        (Pubrec, b"\0\x97"),
        (Pubrel, b"\0\x92"),
        (Pubcomp, b"\0\x92"),
    ):
        reason = st.sampled_from(reasons) if version == 5 else st.just(0)
        acks.append(st.builds(kind, packet_id=packet_id, reason=reason, properties=of(version, None)))
    suback_reasons = st.sampled_from(SUBACK_REASONS if version == 5 else b"\0\1\2\x80")
    connack_reasons = st.sampled_from(CONNACK_REASONS if version == 5 else b"\0\1\2\3\4\5")
    unsuback = {"reasons": st.lists(st.sampled_from(b"\0\x11\x87"), min_size=1, max_size=4).map(tuple)}
    return st.one_of(
        *acks,
        st.builds(
            Connack,
            session_present=flag if version > 3 else st.just(False),
            reason=connack_reasons,
            properties=of(version, Connack),
        ),
        st.builds(
            Suback,
            packet_id=packet_id,
            reasons=st.lists(suback_reasons, min_size=1, max_size=4).map(tuple),
            properties=of(version, None),
        ),
        st.builds(
            Unsuback, packet_id=packet_id, properties=of(version, None), **(unsuback if version == 5 else {})
        ),
    )


def others(version: int) -> st.SearchStrategy[Packet]:
    simple: st.SearchStrategy[Packet] = st.sampled_from([Pingreq(), Pingresp(), Disconnect()])
    unsubscribe: st.SearchStrategy[Packet] = st.builds(
        Unsubscribe,
        packet_id=packet_id,
        filters=st.lists(topic_filter, min_size=1, max_size=4).map(tuple),
        properties=of(version, Unsubscribe),
    )
    if version < 5:
        return simple | unsubscribe
    return st.one_of(
        simple,
        unsubscribe,
        st.builds(Disconnect, reason=st.sampled_from(b"\0\4\x8b\x8e"), properties=of(5, Disconnect)),
        st.builds(Auth, reason=st.sampled_from(b"\0\x18\x19"), properties=of(5, Auth)),
    )


def packets_after_connect(version: int) -> st.SearchStrategy[Packet]:
    return st.one_of(publishes(version), subscribes(version), answers(version), others(version))


versions = st.sampled_from([3, 4, 5])
any_packet = versions.flatmap(lambda v: st.tuples(st.just(v), connects(v) | packets_after_connect(v)))


@settings(max_examples=examples(400))
@given(any_packet)
def test_packet_is_read_as_written(of_version: tuple[int, Packet]) -> None:
    version, packet = of_version
    raw = encode(packet, version)
    assert decode(raw, version) == (packet, len(raw))
    assert decode(raw[:-1], version) is None


@settings(max_examples=examples(150))
@given(PROPERTIES[Publish])
def test_block_of_properties_is_read_as_written(properties: Properties) -> None:
    assert decode_properties(encode_properties(properties)) == properties


@st.composite
def split_streams(draw: st.DrawFn) -> tuple[int, list[Packet], list[bytes]]:
    """A version, a connection's packets, and their bytes in pieces."""
    version = draw(versions)
    packets = [draw(connects(version)), *draw(st.lists(packets_after_connect(version), max_size=6))]
    stream = b"".join(encode(packet, version) for packet in packets)
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return version, packets, [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


@settings(max_examples=examples(150))
@given(split_streams())
def test_any_split_of_a_stream_gives_the_same_packets(split: tuple[int, list[Packet], list[bytes]]) -> None:
    version, packets, pieces = split
    decoder = Decoder()
    found: list[Packet] = []
    for piece in pieces:
        decoder.feed(piece)
        found += decoder
    assert found == packets
    assert decoder.version == version


@settings(max_examples=examples(400))
@given(any_packet, st.data())
def test_a_changed_packet_is_refused_or_means_what_it_says(
    of_version: tuple[int, Packet], data: st.DataObject
) -> None:
    """What passes the checks can be written again, and is then read the same: no bytes were passed over."""
    version, packet = of_version
    raw = bytearray(encode(packet, version))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode(raw, version)
    except ProtocolError:
        return
    if found is not None:
        changed, size = found
        written_for = changed.version if isinstance(changed, Connect) else version
        assert size <= len(raw)
        assert decode(encode(changed, written_for), written_for) == (
            changed,
            len(encode(changed, written_for)),
        )
