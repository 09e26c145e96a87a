"""Each packet has the reason codes of its table and no others."""

from __future__ import annotations

import pytest

from tidemq.errors import ProtocolError
from tidemq.wire import Fault, Suback, Unsuback, decode

# The tables of 5.0 chapter 3, as numbers. 0x8C in DISCONNECT is from section 2.4, which alone names it there.
ALLOWED = {
    "connack": "00 80 81 82 83 84 85 86 87 88 89 8a 8c 90 95 97 99 9a 9b 9c 9d 9f",
    "puback": "00 10 80 83 87 90 91 97 99",
    "pubrec": "00 10 80 83 87 90 91 97 99",
    "pubrel": "00 92",
    "pubcomp": "00 92",
    "suback": "00 01 02 80 83 87 8f 91 97 9e a1 a2",
    "unsuback": "00 11 80 83 87 8f 91",
    "disconnect": "00 04 80 81 82 83 87 89 8b 8c 8d 8e 8f 90 93 94 95 96 97 98 99 9a 9b 9c 9d 9e 9f a0 a1 a2",
    "auth": "00 18 19",
}
FORMS = {
    "connack": "20 03 00 {} 00",
    "puback": "40 03 0001 {}",
    "pubrec": "50 03 0001 {}",
    "pubrel": "62 03 0001 {}",
    "pubcomp": "70 03 0001 {}",
    "suback": "90 04 0001 00 {}",
    "unsuback": "b0 04 0001 00 {}",
    "disconnect": "e0 01 {}",
    "auth": "f0 01 {}",
}
OLD_FORMS = {"connack": ("20 02 00 {}", "00 01 02 03 04 05"), "suback": ("90 03 0001 {}", "00 01 02 80")}


def outcome(raw: bytes, version: int) -> int | Fault:
    """The reason that was read, or the fault it was refused for."""
    try:
        found = decode(raw, version)
    except ProtocolError as error:
        return Fault(error.fault)
    assert found is not None
    packet = found[0]
    if isinstance(packet, Suback | Unsuback):
        return packet.reasons[-1]
    reason: int = getattr(packet, "reason")  # noqa: B009 (not all kinds of packets have one, those of these tests do)
    return reason


def check_all(form: str, version: int, allowed: str) -> None:
    for reason in range(256):
        expected = reason if reason in bytes.fromhex(allowed) else Fault.REASON_CODE
        found = outcome(bytes.fromhex(form.format(f"{reason:02x}")), version)
        assert (type(found) is Fault, found) == (type(expected) is Fault, expected)


@pytest.mark.parametrize("name", ALLOWED)
def test_reason_codes_of_5(name: str) -> None:
    check_all(FORMS[name], 5, ALLOWED[name])


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("name", OLD_FORMS)
def test_return_codes_below_5(name: str, version: int) -> None:
    form, allowed = OLD_FORMS[name]
    check_all(form, version, allowed)
