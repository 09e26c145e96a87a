"""How a node reaches others: addresses, what it shows them, how patient it is, and what it is told back."""

from __future__ import annotations

import ipaddress
import ssl
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tidemq.broker.host.watched_files import FileVersion, file_version
from tidemq.errors import ClusterError

USER = "tidemq"  # of all nodes, at every server; the password is the cluster's
EXTRA = "a cluster needs pip install 'tidemq[cluster]'"
PASSWORD_BYTES_MIN = 16  # guesses cost an attacker nothing but time
PASSWORD_BYTES_MAX = 1024
TRANSPORT_COUNTERS = (
    "cluster_links_connected",
    "cluster_links_failed",  # attempts that did not succeed, and connections that ended
    "cluster_links_refused",  # those of them for which somebody has to mend something
    "cluster_links_lost",  # connections to peers that ended
    "cluster_hellos_refused",  # of nodes that would connect and do not belong here
    "cluster_messages_dropped",  # not connected, or too much waited; each message for each peer
    "cluster_messages_missed",  # that were sent to this node and did not come
    "cluster_messages_malformed",
    "cluster_messages_overrun",  # that came, and waited behind too many
    "cluster_copies_begun",  # streams of copies that were made where there was none
    "cluster_copies_damaged",  # that were made anew because they could not be read, or took nothing
    "cluster_copies_resent",  # times that sending began again behind what a stream had
    "cluster_copies_asked_again",  # times that records were asked for
    "cluster_copies_put_off",  # records that did not fit, and were asked for later
    "cluster_copies_out_of_turn",  # records that were not the next ones, likewise
    "cluster_copies_known",  # records that were there already
    "cluster_copies_trimmed",  # times that old ones were removed
    "cluster_copies_unreadable",  # messages of a stream that could not be read
    "cluster_fetches_refused",
    "cluster_fetches_failed",
    "cluster_calls_failed",  # exceptions of whoever was told something
    "cluster_server_restarts",  # of the own nats-server; counted there
)


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[address]:port`; ClusterError where it is not that."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    # what comes here may be another node's word, and becomes part of a URL
    plain = all(letter.isalnum() or letter in ".-_:" for letter in host)
    if not (colon and host and plain and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ClusterError(f"{address!r:.200} is no address; accepted: host:port, [IPv6]:port")
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """The reverse of `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What nodes show each other: the cluster's password, and certificates of both sides.

    Files are read at every connection, so that what changes there counts from the next one on. All three of
    the certificate's or none; without them only addresses of loopback are used.
    """

    password_file: Path
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        given = [each is not None for each in (self.ca, self.certificate, self.key)]
        if any(given) and not all(given):
            raise ClusterError("TLS between nodes needs all of: ca, certificate, key")

    @property
    def is_tls(self) -> bool:
        return self.ca is not None

    def check_address(self, host: str) -> None:
        """ClusterError where a password would cross a network in the clear."""
        if not self.is_tls and not is_loopback(host):
            raise ClusterError(
                f"{host} is not on this machine, and nodes have no TLS; accepted: addresses of loopback, "
                "or ca, certificate and key"
            )

    def versions(self) -> list[FileVersion]:
        """Others when a file has changed."""
        files = (self.password_file, self.ca, self.certificate, self.key)
        return [file_version(each) for each in files if each is not None]

    def read_password(self) -> str:
        """The first line of the file; ClusterError where it cannot serve."""
        file = self.password_file
        try:
            mode = stat.S_IMODE(file.stat().st_mode)
            with file.open("rb") as opened:
                text = opened.read(PASSWORD_BYTES_MAX + 1)
        except OSError as error:
            raise ClusterError(f"the cluster's password cannot be read: {error}") from error
        if mode & stat.S_IRWXO:
            raise ClusterError(
                f"{file} has the cluster's password, and every user may open it (mode {mode:04o}): "
                f"chmod o= {file}"
            )
        line = text.split(b"\n", 1)[0].strip()
        if not (PASSWORD_BYTES_MIN <= len(line) <= PASSWORD_BYTES_MAX and line.isascii() and line.isalnum()):
            raise ClusterError(
                f"the first line of {file} is no password of a cluster; accepted: {PASSWORD_BYTES_MIN} to "
                f"{PASSWORD_BYTES_MAX} letters and digits"
            )
        return line.decode()

    def client_context(self) -> ssl.SSLContext | None:
        """For connections to servers; None without TLS. ClusterError names a file that cannot be used."""
        if not (self.ca and self.certificate and self.key):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            files = f"{self.ca}, {self.certificate}, {self.key}"
            raise ClusterError(f"one of {files} cannot be used: {error}") from error
        return context


def _no_password() -> str:
    raise ssl.SSLError("the key is encrypted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a node waits for others, in seconds."""

    connect_s: float = 5.0  # for a connection to a server that is ready for use
    answer_s: float = 3.0  # for one answer of a server; longer, and the connection is given up
    ping_s: float = 1.0  # between two questions whether a server still answers
    retry_s: float = 0.1  # before the first attempt after a connection; doubles
    retry_s_max: float = 5.0
    again_s: float = 0.3  # at most, soon after the end of a connection to a node
    refused_s: float = 20.0  # after a refusal, which somebody must mend first
    stuck_s: float = 30.0  # in which a stream takes nothing as if its files were gone; then it is made anew
    trim_s: float = 1.0  # between two removals of old copies at one server


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a node holds for others in memory and at their servers, in bytes."""

    message_bytes_max: int = (512 + 16) << 20  # of one message: more than any record
    waiting_bytes_max: int = 64 << 20  # messages that wait for one peer's server
    copies_bytes_max: int = 64 << 20  # records that one peer's server has not acknowledged
    record_bytes_max: int = 512 << 20  # of one record: a batch, and the largest PUBLISH that can be
    fetched_bytes_max: int = 8 << 20  # of records in one answer to `fetch`; one record may be larger


class Events(Protocol):
    """What a transport says. All of it is called on its thread, which must not wait: whoever has much to do
    hands it on. An exception is logged and counted, and ends nothing.
    """

    def on_message(self, kind: str, sender: int, body: bytes) -> None:
        """A message of another node; those of one sender in its order, maybe with gaps."""

    def on_connected(self, peer: int, address: str) -> None:
        """Messages to this node arrive from now on."""

    def on_disconnected(self, peer: int) -> None:
        """They do no longer; those that waited are dropped."""

    def on_met(self, peer: int, address: str) -> None:
        """A node has said its incarnation and address: one of our addresses, or it connected to us. For
        `set_peers`, which is not done by itself.
        """

    def on_problem(self, address: str, text: str) -> None:
        """What somebody should know of, once until it changes and then once a minute."""

    def on_copied(self, to: int, number: int) -> None:
        """The server of `to` has all records up to `number`, also those of before a restart. Fewer than were
        said before: it has lost some.
        """

    def on_copies_lost(self, to: int, first_needed: int) -> None:
        """`copy` shall give the records from this number on, again or for the first time."""

    def on_records(self, holder: int, incarnation: int, records: Sequence[bytes], problem: str) -> None:
        """The answer to a `fetch`; `problem` says why there is none."""
