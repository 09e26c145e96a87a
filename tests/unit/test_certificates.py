"""Client certificates, made by cryptography: which name becomes the client's."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from unit.auth_kit import HttpServer, request

from tidemq.broker.authenticators.certificate import CertificateOptions, fingerprint_of, make_certificate
from tidemq.broker.authenticators.webhook import make_webhook_authenticator
from tidemq.broker.providers import UNKNOWN, Verdict
from tidemq.config import Config
from tidemq.errors import ConfigError

KEY = ec.generate_private_key(ec.SECP256R1())
NOW = datetime.datetime.now(datetime.UTC)
BAD = Verdict(0x86)
NOT_HIS = Verdict(0x87)


def certificate(
    *names: str,
    sans: tuple[x509.GeneralName, ...] = (),
    days: float = 1,
    subject: x509.Name | None = None,
) -> bytes:
    """One of its own authority: that it is verified is the business of TLS."""
    subject = subject or x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    builder = x509.CertificateBuilder(
        issuer_name=subject,
        subject_name=subject,
        public_key=KEY.public_key(),
        serial_number=7,
        not_valid_before=NOW - datetime.timedelta(days=9),
        not_valid_after=NOW + datetime.timedelta(days=days),
    )
    if sans:
        builder = builder.add_extension(x509.SubjectAlternativeName(sans), critical=False)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


PLAIN = certificate("pump-7")
SANS = (
    x509.DNSName("pump.example"),
    x509.RFC822Name("pump@example.org"),
    x509.UniformResourceIdentifier("urn:pump:7"),
)


def openssl_subject(der: bytes) -> str:
    """As OpenSSL prints it by RFC 2253, which is what Mosquitto takes."""
    command = ["openssl", "x509", "-inform", "der", "-noout", "-subject", "-nameopt", "RFC2253"]
    done = subprocess.run(command, input=der, capture_output=True, check=True)
    return done.stdout.decode().strip().removeprefix("subject=")


def judge(der: bytes | None, own_id: str = "c1", /, **options: Any) -> Verdict:
    given = {"ends_with_certificate": False, **options}
    return make_certificate(Config(), given).authenticate(request(own_id, "claimed", certificate=der))


@pytest.mark.parametrize(
    ("identity", "name"),
    [
        ("cn", "pump-7"),
        ("san_dns", "pump.example"),
        ("san_email", "pump@example.org"),
        ("san_uri", "urn:pump:7"),
        ("fingerprint", None),
    ],
)
def test_a_name_of_the_certificate_becomes_the_clients(identity: str, name: str | None) -> None:
    der = certificate("pump-7", sans=SANS)
    assert judge(der, identity=identity) == Verdict(username=name or fingerprint_of(der))


@pytest.mark.parametrize("names", [
    [(NameOID.COMMON_NAME, "pump-7")],
    [
        (NameOID.COUNTRY_NAME, "GB"), (NameOID.STATE_OR_PROVINCE_NAME, "Kent"),
        (NameOID.LOCALITY_NAME, "Dover"), (NameOID.ORGANIZATION_NAME, "Plant, Works & Co; <1>"),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, 'a "b" + c\\d'), (NameOID.COMMON_NAME, " #pump 7 "),
        (NameOID.EMAIL_ADDRESS, "pump@example.org"),
    ],
    [(NameOID.ORGANIZATION_NAME, "Grün GmbH"), (NameOID.COMMON_NAME, "#€")],
])  # fmt: skip
def test_the_subject_is_written_as_openssl_writes_it(names: list[tuple[x509.ObjectIdentifier, str]]) -> None:
    subject = x509.Name([x509.NameAttribute(kind, name) for kind, name in names])
    der = certificate(subject=subject)
    assert judge(der, identity="subject") == Verdict(username=openssl_subject(der))


@pytest.mark.parametrize(
    ("der", "identity", "verdict"),
    [
        (None, "cn", UNKNOWN),
        (b"", "cn", NOT_HIS),
        (PLAIN[:-20], "cn", NOT_HIS),
        (PLAIN, "san_dns", BAD),
        (certificate(), "cn", BAD),
        (certificate("a", "b"), "cn", BAD),
        (certificate("a\nb"), "cn", BAD),
        (certificate("a", sans=(x509.DNSName("x"), x509.DNSName("y"))), "san_dns", BAD),
        (certificate("a", days=-1), "cn", NOT_HIS),
    ],
)
def test_no_name_or_several_are_refused(der: bytes | None, identity: str, verdict: Verdict) -> None:
    assert judge(der, identity=identity) == verdict


def test_the_client_identifier_is_free_equal_or_replaced() -> None:
    assert judge(PLAIN, "any") == Verdict(username="pump-7")
    assert judge(PLAIN, "any", client_id="equal") == NOT_HIS
    assert judge(PLAIN, "pump-7", client_id="equal") == Verdict(username="pump-7")
    assert judge(PLAIN, "any", client_id="replace") == Verdict(username="pump-7", client_id="pump-7")


def test_only_certificates_on_the_list() -> None:
    listed = fingerprint_of(PLAIN).upper()
    with_colons = ":".join(listed[index : index + 2] for index in range(0, 64, 2))
    for fingerprint in (listed, with_colons):
        assert judge(PLAIN, fingerprints=[fingerprint]).reason == 0
        assert judge(certificate("pump-7", days=2), fingerprints=[fingerprint]) == NOT_HIS
    assert judge(PLAIN, fingerprints=[]) == NOT_HIS
    with pytest.raises(ConfigError, match=r"options of certificate.fingerprints.0"):
        judge(PLAIN, fingerprints=["12:34"])


def test_the_connection_ends_with_the_certificate() -> None:
    verdict = judge(PLAIN, ends_with_certificate=True)
    assert verdict.expires_s is not None
    assert 80_000 < verdict.expires_s < 86_400  # a day, made when the tests began


async def test_a_webhook_is_told_whose_certificate_it_is() -> None:
    async with HttpServer() as server:
        hook = make_webhook_authenticator(Config(), {"url": server.url})
        await hook.authenticate(request(certificate=PLAIN))
        await hook.close()
    assert server.bodies[0]["certificate_subject"] == "CN=pump-7"
    assert server.bodies[0]["certificate_sha256"] == fingerprint_of(PLAIN)


def test_options_are_as_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    section = text.split("\n## Client certificates\n")[1]
    for name, field in CertificateOptions.model_fields.items():
        shown = {True: "`true`", None: "any"}.get(field.default, f'`"{field.default}"`')
        assert f"| `{name}` | {shown} |" in section, name
