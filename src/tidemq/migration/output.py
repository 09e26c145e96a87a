"""What an import has made so far: tables of the configuration, and the files that stand beside it."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemq.config import refused
from tidemq.migration.lines import Line
from tidemq.migration.report import Report

CERTIFICATES_MAX = 10_000  # files of a directory
_FILE_BYTES_MAX = 256 << 20
_HASHED = re.compile(r"[0-9a-f]{8}\.[0-9]+")


@dataclass
class Output:
    """`folder`: where all of it will be. Nothing is written here; contents are kept until all is right."""

    folder: Path
    report: Report
    config: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)  # by their path below the folder
    has_ipv6: Callable[[], bool] = socket.has_dualstack_ipv6

    def limit(self, name: str, value: int) -> None:
        """Sets a limit."""
        self.config.setdefault("limits", {})[name] = value

    def keep(self, name: str, content: bytes) -> Path:
        """A file beside the configuration; gives its path. The same name with other content gets a number."""
        stem, suffix = Path(name).stem, Path(name).suffix
        number = 1
        while self.files.get(name, content) != content:
            number += 1
            name = str(Path(name).with_name(f"{stem}-{number}{suffix}"))
        self.files[name] = content
        return self.folder / name


def absolute(line: Line, value: str | None = None) -> Path:
    """A path of a line, which may be relative to where Mosquitto was started: taken to be here."""
    return Path(value or line.value).absolute()


def read_file(line: Line) -> bytes:
    """The file that a line names; ConfigError."""
    try:
        path = Path(line.value)
        if path.exists() and not path.is_file():
            raise refused(line.place, line.option, f"{path} is no file", ["a file"])
        if path.stat().st_size > _FILE_BYTES_MAX:
            raise refused(line.place, line.option, f"{path} is too large", [f"{_FILE_BYTES_MAX} bytes"])
        return path.read_bytes()
    except OSError as error:
        problem = f"{line.value}: {error.strerror}"
        raise refused(line.place, line.option, problem, ["a readable file"]) from error


def join_certificates(line: Line) -> bytes:
    """The certificates in a directory, one after the other, each once; of the files alone that OpenSSL looks
    at, which are named by a hash. ConfigError.
    """
    begin, end = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
    found: dict[bytes, None] = {}
    try:
        for number, path in enumerate(sorted(Path(line.value).iterdir())):
            if number >= CERTIFICATES_MAX:
                raise refused(line.place, line.option, "too many files", [f"{CERTIFICATES_MAX} at most"])
            if not _HASHED.fullmatch(path.name) or not path.is_file():
                continue
            for part in path.read_bytes().split(begin)[1:]:
                body, closed, _ = part.partition(end)
                if closed:
                    found[begin + body + end + b"\n"] = None
    except OSError as error:
        problem = f"{line.value}: {error.strerror}"
        raise refused(line.place, line.option, problem, ["a readable directory"]) from error
    if not found:
        accepted = ["files in PEM, named by `openssl rehash`"]
        raise refused(line.place, line.option, f"{line.value} has no certificate", accepted)
    return b"".join(found)
