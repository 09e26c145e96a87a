"""Where tables, checkpoints, dumps and results lie: a path or a URI, and how it is reached.

A place of an object store is reached by `object_store`, the library below `deltalake`: for logs and files the
same credentials and the same names of options. Spark's Java goes its own way there (`spark_uri`), and needs
a connector of Hadoop's that Spark itself does not bring.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from tidemq.errors import ConfigError, UsageError
from tidemq.pipeline.toml_files import read_section

OBJECT_STORES = ("s3", "gs", "abfss")
ACCEPTED = {  # names of options, by the scheme for which they are; and Hadoop's name, where it is told
    "s3": {
        "aws_access_key_id": "fs.s3a.access.key",
        "aws_secret_access_key": "fs.s3a.secret.key",
        "aws_session_token": "fs.s3a.session.token",
        "aws_region": "fs.s3a.endpoint.region",
        "aws_endpoint_url": "fs.s3a.endpoint",
        "aws_virtual_hosted_style_request": "",
        "aws_skip_signature": "",
        "aws_s3_locking_provider": "",  # dynamodb, where the store cannot put an object if there is none
        "delta_dynamo_table_name": "",
    },
    "gs": {"google_service_account": "", "google_service_account_key": "", "google_skip_signature": ""},
    "abfss": {
        "azure_storage_account_name": "",
        "azure_storage_account_key": "",
        "azure_storage_sas_token": "",
        "azure_storage_client_id": "",
        "azure_storage_client_secret": "",
        "azure_storage_tenant_id": "",
        "azure_storage_use_emulator": "",
    },
    "file": {"allow_unsafe_rename": ""},  # where there are no hard links: two drivers are not told apart
}
_VOLUMES = "file:///Volumes/"  # Unity Catalog's, which Databricks mounts on the driver and all executors
_SAME = {"s3a": "s3", "s3n": "s3", "abfs": "abfss"}


def place_uri(place: str) -> str:
    """The URI of a path, relative ones from here; a URI in the form that all but Spark take, without a slash
    at its end.
    """
    scheme = urlsplit(place).scheme
    if not scheme:
        place = Path(place).absolute().as_uri()
    elif scheme in _SAME:
        place = _SAME[scheme] + place[len(scheme) :]
    elif place.startswith("dbfs:/Volumes/"):
        place = f"file:///{place.removeprefix('dbfs:/')}"
    return place.rstrip("/")


def spark_uri(uri: str) -> str:
    """The same place as Spark's Java calls it: Hadoop's S3 is s3a, and a volume has no scheme."""
    uri = place_uri(uri)
    if uri.startswith(_VOLUMES):
        return uri.removeprefix("file://")
    return f"s3a{uri.removeprefix('s3')}" if uri.startswith("s3:") else uri


def in_one_line(text: str) -> str:
    """What object stores' errors say, which have several lines, in colours."""
    return re.sub(r"\s*\x1b\[\d+m↳\x1b\[0m\s*", ": ", text).strip()


def in_object_store(uri: str) -> bool:
    """Where Spark's Java may have no connector: tasks read and write there by themselves."""
    return urlsplit(place_uri(uri)).scheme in OBJECT_STORES


@dataclass(frozen=True, slots=True)
class Storage:
    """How object stores are reached: options by the names that deltalake has for them, in small letters. What
    they do not say, the environment says, of the driver and of each executor.

    Has credentials: is never shown or logged.
    """

    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, given: Mapping[str, Any], origin: str = "storage_options") -> Self:
        """ConfigError for a name that is not accepted, or a value that is no text."""
        accepted = sorted(name for names in ACCEPTED.values() for name in names)
        for name, value in given.items():
            if name.lower() not in accepted:
                raise ConfigError(f"{origin} has {name}; accepted: {', '.join(accepted)}")
            if not isinstance(value, str):
                raise ConfigError(f"{origin}: {name} is not text; accepted: text in quotes")
        return cls({name.lower(): value for name, value in given.items()})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Of the section `storage_options` of a TOML file. ConfigError, or OSError where it cannot be
        read."""
        return cls.parse(read_section(path, "storage_options"), f"{path}: storage_options")

    @property
    def of_tables(self) -> dict[str, str]:
        """For deltalake."""
        plain = self.options.get("aws_endpoint_url", "").startswith("http://")
        return {**self.options, **({"aws_allow_http": "true"} if plain else {})}

    @property
    def of_spark(self) -> dict[str, str]:
        """Settings of a session, for checkpoints in S3."""
        told = {name: key for name, key in ACCEPTED["s3"].items() if key and name in self.options}
        given = {f"spark.hadoop.{key}": self.options[name] for name, key in told.items()}
        if "aws_endpoint_url" in self.options:
            virtual = self.options.get("aws_virtual_hosted_style_request", "false")
            given["spark.hadoop.fs.s3a.path.style.access"] = str(virtual.lower() != "true").lower()
        return given

    def open(self, uri: str) -> tuple[pafs.FileSystem, str]:
        """The file system of a place, and the place's path in it. UsageError for a scheme that is not
        accepted."""
        parts = urlsplit(uri := place_uri(uri))
        if parts.scheme in OBJECT_STORES:
            options = tuple(sorted(self.of_tables.items()))
            return _object_store(f"{parts.scheme}://{parts.netloc}", options), parts.path.strip("/")
        if parts.scheme not in ("file", "hdfs"):
            accepted = ", ".join(("a path", "file", *OBJECT_STORES, *_SAME, "hdfs"))
            raise UsageError(f"{uri} has the scheme {parts.scheme}; accepted: {accepted}")
        files, root = pafs.FileSystem.from_uri(uri)
        return files, root


ENVIRONMENT = Storage()  # says all


@lru_cache(maxsize=64)  # each has connections of its own
def _object_store(base: str, options: tuple[tuple[str, str], ...]) -> pafs.FileSystem:
    from deltalake.fs import DeltaStorageHandler

    class Handler(DeltaStorageHandler):
        def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> pa.PythonFile:
            return pa.PythonFile(_TakesBuffers(self._handler.open_output_stream(path, metadata)))

    return pafs.PyFileSystem(Handler(base, dict(options)))


class _TakesBuffers:
    """A file of deltalake's that is written: it takes bytes alone, and Arrow gives buffers, too."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        written: int = self._file.write(bytes(data))
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
