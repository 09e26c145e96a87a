"""An S3 server of moto's, in a process of its own on this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs as pafs
from waiting import wait_until

from tidemq.pipeline.places import Storage
from tidemq.testing.ports import free_port

BUCKET = "lake"
SECRET = "a-secret-that-is-in-no-log"


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """Its address. Each of its credentials is as good as another."""

    url: str

    @property
    def options(self) -> dict[str, str]:
        return {
            "aws_endpoint_url": self.url,
            "aws_region": "eu-central-1",
            "aws_access_key_id": "test",
            "aws_secret_access_key": SECRET,
        }

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that is told nothing else."""
        said = {name.upper(): value for name, value in self.options.items()}
        return {**os.environ, **said, "AWS_ALLOW_HTTP": "true"}

    @property
    def storage(self) -> Storage:
        return Storage(self.options)

    def write_options(self, file: Path) -> Path:
        """For `--storage-options`."""
        lines = [f'{name} = "{value}"' for name, value in self.options.items()]
        file.write_text("\n".join(["[storage_options]", *lines]))
        return file

    def objects(self, folder: str) -> list[str]:
        """All that are below a folder, by their paths in it."""
        files, root = self.storage.open(f"s3://{BUCKET}/{folder}")
        found = files.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
        return [info.path.removeprefix(f"{root}/") for info in found if info.type == pafs.FileType.File]


@contextmanager
def object_store(log: Path) -> Iterator[ObjectStore]:
    """With a bucket; it is gone with its content afterwards."""
    port = free_port()
    with log.open("wb") as said:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
    store = ObjectStore(f"http://127.0.0.1:{port}")

    def made() -> bool:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(urllib.error.URLError):
            request = urllib.request.Request(f"{store.url}/{BUCKET}", method="PUT")
            urllib.request.urlopen(request, timeout=10).close()
            return True
        return False

    try:
        wait_until(made, "the S3 server answers")
        yield store
    finally:
        process.kill()
        process.wait()
