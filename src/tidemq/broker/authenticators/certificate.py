"""The authenticator `certificate`: who a client is stands in the certificate that TLS has verified.

Needs cryptography.
"""

from __future__ import annotations

import hashlib
import re
import time
from typing import Annotated, Literal

from cryptography import x509
from cryptography.x509.oid import NameOID
from pydantic import AfterValidator, BaseModel, ConfigDict, StrictBool

from tidemq.broker.providers import (
    BAD_USER_NAME_OR_PASSWORD,
    NOT_AUTHORIZED,
    UNKNOWN,
    Options,
    Verdict,
    is_name,
    read_options,
)
from tidemq.config import Config
from tidemq.engine.door.events import ConnectRequest

Identity = Literal["cn", "subject", "san_dns", "san_email", "san_uri", "fingerprint"]

_SAN_KINDS: dict[Identity, type[x509.DNSName | x509.RFC822Name | x509.UniformResourceIdentifier]] = {
    "san_dns": x509.DNSName,
    "san_email": x509.RFC822Name,
    "san_uri": x509.UniformResourceIdentifier,
}


def fingerprint_of(certificate: bytes) -> str:
    """SHA-256 of the DER, in hexadecimal."""
    return hashlib.sha256(certificate).hexdigest()


def subject_of(certificate: bytes) -> str:
    """The subject as RFC 4514 writes it; ValueError for what is no certificate."""
    return x509.load_der_x509_certificate(certificate).subject.rfc4514_string()


def subject_name(certificate: x509.Certificate) -> str:
    """The whole subject as one name, as OpenSSL writes it by RFC 2253 and Mosquitto takes it:
    CN=pump-7,OU=Plant,O=Works. What is not ASCII stands as the bytes of UTF-8 in hexadecimal, `\\C3`.
    """
    text = certificate.subject.rfc4514_string({NameOID.EMAIL_ADDRESS: "emailAddress"})
    return "".join(
        letter if letter.isascii() else "".join(f"\\{byte:02X}" for byte in letter.encode())
        for letter in text
    )


def names_in(certificate: x509.Certificate, identity: Identity) -> list[str]:
    """All names of that kind in a certificate; ValueError where it is malformed."""
    if identity == "subject":
        return [subject_name(certificate)] if certificate.subject.rdns else []
    if identity == "cn":
        found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return [str(each.value) for each in found]
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name) for name in names.get_values_for_type(_SAN_KINDS[identity])]


def _check_fingerprint(text: str) -> str:
    plain = text.replace(":", "").lower()
    if not re.fullmatch("[0-9a-f]{64}", plain):
        raise ValueError("64 hexadecimal digits of SHA-256, with or without colons")
    return plain


class CertificateOptions(BaseModel):
    """Which name, and what it becomes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    identity: Identity = "cn"
    client_id: Literal["free", "equal", "replace"] = "free"  # the client's own, against the name
    fingerprints: tuple[Annotated[str, AfterValidator(_check_fingerprint)], ...] | None = None  # None: any
    ends_with_certificate: StrictBool = True  # the connection


class CertificateAuthenticator:
    """Accepts who has a verified certificate with the name that is asked for, once and no more."""

    def __init__(self, options: CertificateOptions) -> None:
        self._options = options
        self._allowed = None if options.fingerprints is None else frozenset(options.fingerprints)

    def authenticate(self, request: ConnectRequest) -> Verdict:
        """Whoever has no certificate is unknown."""
        options, der = self._options, request.certificate
        if der is None:
            return UNKNOWN
        fingerprint = fingerprint_of(der)
        if self._allowed is not None and fingerprint not in self._allowed:
            return Verdict(NOT_AUTHORIZED)
        try:
            certificate = x509.load_der_x509_certificate(der)
            names = (
                [fingerprint]
                if options.identity == "fingerprint"
                else names_in(certificate, options.identity)
            )
        except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
            return Verdict(NOT_AUTHORIZED)
        if len(names) != 1 or not is_name(names[0]):
            return Verdict(BAD_USER_NAME_OR_PASSWORD)
        name = names[0]
        if options.client_id == "equal" and request.client_id != name:
            return Verdict(NOT_AUTHORIZED)
        left_s = certificate.not_valid_after_utc.timestamp() - time.time()
        if left_s <= 0:
            return Verdict(NOT_AUTHORIZED)
        return Verdict(
            username=name,
            client_id=name if options.client_id == "replace" else "",
            expires_s=left_s if options.ends_with_certificate else None,
        )


def make_certificate(_: Config, options: Options) -> CertificateAuthenticator:
    """The entry point `certificate`."""
    return CertificateAuthenticator(read_options("certificate", CertificateOptions, options))
