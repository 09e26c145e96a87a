"""The image is built by buildah, as far as that goes without a registry of images and without Docker.

Its base is made by mmdebstrap of the packages that the real one is made of. What was built is started in a
chroot with a read-only root and the volume, as the image's user, in a network of its own.

The wheel is the one that `make deb` has compiled, by the same Python; `TIDEMQ_TEST_IMAGE=whole` compiles it
in the image, as Docker would.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from packages.containers import READ_ONLY, Container, make_archive
from packages.test_image import instructions

ROOT = Path(__file__).parents[2]
KNOWN = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
WHEELS = ROOT / "build/deb/tidemq/build/debian/wheels"
COMPILES = "/build/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source"
HERE = ["-h", "127.0.0.1"]  # there is no file of hosts
SUITES = {"12": "bookworm"}

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


class Buildah:
    """Images in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._options = ["--root", str(folder / "storage"), "--runroot", str(folder / "run")]
        self._options += ["--storage-driver", "vfs"]

    def __call__(self, *words: str | Path) -> str:
        done = subprocess.run(
            ["buildah", *self._options, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout.strip()


@pytest.fixture
def buildah(install: Callable[[str, str], None], tmp_path: Path) -> Iterator[Buildah]:
    if os.geteuid() != 0:
        pytest.fail("a Debian of its own needs root")
    install("mmdebstrap", "mmdebstrap")
    install("buildah", "buildah")
    run = Buildah(tmp_path)
    yield run
    run("rm", "--all")
    run("rmi", "--all", "--force")
    shutil.rmtree(tmp_path)


def make_base(buildah: Buildah, name: str) -> None:
    """An image of this name, `debian:VERSION-slim`."""
    suite = SUITES[name.split(":")[1].split(".")[0]]
    archive = ROOT / f"build/image/{suite}.tar"
    make_archive(archive, suite)
    container = buildah("from", "--name", "base", "scratch")
    buildah("add", container, archive, "/")
    buildah("commit", container, name)


def trusted(folder: Path) -> list[str]:
    """Options that give pip the authorities of this machine, where it has its own."""
    authorities = os.environ.get("PIP_CERT")
    if not authorities:
        return []
    (folder / "pip.conf").write_text("[global]\ncert = /etc/pip.crt\n")
    return [f"--volume={authorities}:/etc/pip.crt:ro", f"--volume={folder / 'pip.conf'}:/etc/pip.conf:ro"]


def make_context(context: Path) -> None:
    """What is sent to the builder: what git knows, and a wheel in place of compiling it."""
    context.mkdir()
    names = subprocess.run([*KNOWN, "-z"], stdout=subprocess.PIPE, check=True, cwd=ROOT).stdout
    for name in names.decode().split("\0")[:-1]:
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, context / name)
    if os.environ.get("TIDEMQ_TEST_IMAGE") == "whole":
        return
    if not WHEELS.is_dir():
        subprocess.run([ROOT / "tools/deb.sh", ROOT / "dist"], check=True)
    shutil.copytree(WHEELS, context / "wheels")
    text = (context / "Dockerfile").read_text()
    assert text.count(COMPILES) == 1
    (context / "Dockerfile").write_text(text.replace(COMPILES, "cp -r /source/wheels /wheels"))


def test_it_is_built_and_serves_with_a_read_only_root(buildah: Buildah, tmp_path: Path) -> None:
    base = next(rest.split()[0] for word, rest in instructions() if word == "FROM")
    make_base(buildah, base)
    context = tmp_path / "context"
    make_context(context)
    buildah(
        "bud",
        "--format=docker",
        "--isolation=chroot",
        "--pull-never",
        *trusted(tmp_path),
        "--tag=tidemq",
        context,
    )
    image: dict[str, Any] = json.loads(buildah("inspect", "--type=image", "tidemq"))["Docker"]["config"]
    assert image["User"] == "10001:10001"
    [place] = image["Volumes"]
    container = buildah("from", "--pull-never", "--name=made", "tidemq")
    root = Path(buildah("mount", container))
    volume = tmp_path / "volume"
    volume.mkdir(mode=0o700)
    os.chown(volume, 10001, 10001)
    made = Container(root, READ_ONLY.format(volume=volume, place=place.lstrip("/")))
    environment = dict(each.split("=", 1) for each in image["Env"])
    who = ["setpriv", "--reuid=10001", "--regid=10001", "--clear-groups", "--no-new-privs", "--"]
    serve = [*who, *image["Entrypoint"], *image["Cmd"]]
    with made.serving(*serve, environment=environment, log=tmp_path / "log") as broker:
        health = image["Healthcheck"]["Test"]
        assert health[0] == "CMD"
        for words, said in (
            (health[1:], "status  ok"),
            (["tidemq", "pub", *HERE, "-t", "a", "-m", "kept", "-q", "1", "-r"], ""),
            (["tidemq", "sub", *HERE, "-t", "a", "-C", "1"], "kept"),
        ):
            answer = made.run(*who, *words, network_of=broker, environment=environment)
            assert answer.strip().endswith(said)
    assert (volume / "engine").read_text() == "rocksdb"
    assert (root / "opt/tidemq/share/tidemq.cdx.json").is_file()
