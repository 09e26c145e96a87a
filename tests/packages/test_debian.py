"""The Debian package is installed, starts its service, keeps its data over an upgrade, and is purged.

In a Debian of its own below a folder, without systemd: the service's command runs as its unit says.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from packages.containers import Container, codename, make_archive

from tidemq.config import load_config

ROOT = Path(__file__).parents[2]
DEBIAN = ROOT / "debian"
HERE = ["-h", "127.0.0.1"]  # there is no file of hosts
METER = [*HERE, "-c", "-i", "meter", "-t", "a/#", "-q", "1"]
NEEDED = ("adduser", "ca-certificates", "libssl3", "libstdc++6", "man-db", "procps", "python3")


def test_its_version_is_the_projects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    first = (DEBIAN / "changelog").read_text().splitlines()[0]
    assert first.startswith(f"tidemq ({project['version']}) ")


def test_it_needs_what_its_unit_calls() -> None:
    """`kill`, which reloads the service, is of a package that a small Debian does not have."""
    text = (ROOT / "examples/systemd/tidemq.service").read_text()
    assert re.findall(r"^ExecReload=(\S+)", text, re.MULTILINE) == ["/bin/kill"]
    assert re.search(r"^Depends:.* procps,", (DEBIAN / "control").read_text(), re.MULTILINE)
    assert "procps" in NEEDED


def test_its_configuration_is_accepted_and_lets_in_nobody_from_elsewhere() -> None:
    config = load_config(DEBIAN / "tidemq.toml", {})
    assert (config.port, config.admin_port, config.admin_host) == (1883, 18083, "127.0.0.1")
    assert config.admin_token_file == "/etc/tidemq/admin-token"
    assert (config.authenticator, config.authenticator_options) == ("anonymous", {})


@pytest.mark.parametrize("name", ["tidemq.postinst", "tidemq.postrm"])
def test_its_scripts_are_shell(name: str) -> None:
    subprocess.run(["sh", "-n", DEBIAN / name], check=True)
    assert "#DEBHELPER#" in (DEBIAN / name).read_text()


def test_tools_are_the_versions_of_the_project() -> None:
    """Cython's, which compiles, and that of the list of components."""
    found = re.findall(r"([\w-]+==[\d.]+)", (DEBIAN / "rules").read_text())
    assert [each.split("==")[0] for each in found] == ["Cython", "cyclonedx-bom"]
    text = (ROOT / "pyproject.toml").read_text()
    assert not [each for each in found if f'"{each}"' not in text]


@pytest.fixture(scope="module")
def package() -> Path:
    """As `make deb` has made it, or makes it."""
    found = list((ROOT / "dist").glob("tidemq_*.deb"))
    if not found:
        subprocess.run([ROOT / "tools/deb.sh", ROOT / "dist"], check=True)
        found = list((ROOT / "dist").glob("tidemq_*.deb"))
    [path] = found
    return path


@pytest.fixture(scope="module")
def newer(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same package as a later version."""
    folder = tmp_path_factory.mktemp("newer")
    subprocess.run(["dpkg-deb", "--raw-extract", package, folder / "tree"], check=True)
    control = folder / "tree/DEBIAN/control"
    control.write_text(re.sub(r"(?m)^Version: .*$", r"\g<0>+later", control.read_text()))
    options = ["--build", "--root-owner-group", "-Znone"]
    subprocess.run(["dpkg-deb", *options, folder / "tree", folder / "tidemq.deb"], check=True)
    return folder / "tidemq.deb"


@pytest.fixture
def container(install: Callable[[str, str], None], tmp_path: Path) -> Iterator[Container]:
    if os.geteuid() != 0:
        pytest.fail("a Debian of its own needs root")
    install("mmdebstrap", "mmdebstrap")
    archive, root = ROOT / f"build/deb/{'_'.join(NEEDED)}.tar", tmp_path / "root"
    make_archive(archive, codename(), *NEEDED)
    root.mkdir()
    subprocess.run(["tar", "--extract", "--numeric-owner", "-f", archive, "-C", root], check=True)
    yield Container(root)
    shutil.rmtree(root)


def unit(container: Container) -> dict[str, str]:
    """The keys of the installed unit that say how the service is started."""
    text = (container.root / "lib/systemd/system/tidemq.service").read_text()
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


def service(container: Container, log: Path) -> AbstractContextManager[int]:
    """The service as its unit starts it; gives its process id."""
    keys = unit(container)
    name, value = keys["Environment"].replace("%S", "/var/lib").split("=")
    who = [f"--reuid={keys['User']}", f"--regid={keys['Group']}", "--clear-groups", "--no-new-privs"]
    command = ["setpriv", *who, "--", *shlex.split(keys["ExecStart"])]
    return container.serving(*command, environment={name: value}, log=log)


def files_of(container: Container, folder: str) -> list[Path]:
    return sorted((container.root / folder).rglob("*"))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_it_is_installed_upgraded_with_its_data_and_purged(
    container: Container, package: Path, newer: Path, tmp_path: Path
) -> None:
    shutil.copy(package, container.root / "first.deb")
    shutil.copy(newer, container.root / "second.deb")
    container.run("apt-get", "-q", "install", "--yes", "/first.deb")
    assert (container.root / "var/lib/tidemq").stat().st_mode & 0o777 == 0o700
    assert (container.root / "etc/tidemq").stat().st_mode & 0o777 == 0o750
    token = container.root / "etc/tidemq/admin-token"
    drawn = token.read_text()
    assert re.fullmatch(r"[0-9a-f]{64}", drawn)
    assert (token.stat().st_mode & 0o777, token.stat().st_uid) == (0o640, 0)
    installed = files_of(container, "usr/lib/tidemq")
    with service(container, tmp_path / "first.log") as broker:
        container.run("tidemq", "sub", *METER, "-E", network_of=broker)
        for topic, more in (("a/1", ["-r"]), ("a/2", [])):
            run = ["tidemq", "pub", *HERE, "-t", topic, "-m", "kept", "-q", "1", *more]
            container.run(*run, network_of=broker)
        assert "ok" in container.run("tidemq", "admin", "health", network_of=broker)
        asked = ["tidemq", "admin", "--token-file", "/etc/tidemq/admin-token", "alarms"]
        container.run(*asked, network_of=broker)
        with pytest.raises(AssertionError, match="the admin token is missing"):
            container.run("tidemq", "admin", "alarms", network_of=broker)
    configuration = container.root / "etc/tidemq/tidemq.toml"
    configuration.write_text(configuration.read_text() + "\n[limits]\nqueued_messages_max = 77\n")
    container.run("apt-get", "-q", "install", "--yes", "/second.deb")
    assert container.run("dpkg-query", "-W", "-f", "${Version}", "tidemq").endswith("+later")
    assert "queued_messages_max = 77" in configuration.read_text()
    assert token.read_text() == drawn
    with service(container, tmp_path / "second.log") as broker:
        run = ["tidemq", "sub", *METER, "-C", "3", "-W", "60", "-v"]
        said = container.run(*run, network_of=broker).splitlines()
        assert sorted(said) == ["a/1 kept", "a/1 kept", "a/2 kept"]  # one of them is retained
    assert files_of(container, "usr/lib/tidemq") == installed  # nothing was written there
    container.run("apt-get", "-q", "remove", "--yes", "tidemq")
    assert configuration.exists()
    assert (container.root / "var/lib/tidemq/engine").exists()
    assert not (container.root / "usr/lib/tidemq").exists()
    container.run("apt-get", "-q", "purge", "--yes", "tidemq")
    for gone in ("etc/tidemq", "var/lib/tidemq", "usr/bin/tidemq"):
        assert not (container.root / gone).exists(), gone


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_what_it_brings(container: Container, package: Path) -> None:
    """Manual page, completion, list of components, documents; nothing names the place where it was built."""
    shutil.copy(package, container.root / "tidemq.deb")
    container.run("apt-get", "-q", "install", "--yes", "/tidemq.deb")
    assert "tidemq store migrate" in container.run("man", "tidemq")
    for path in (
        "usr/share/bash-completion/completions/tidemq",
        "usr/share/zsh/vendor-completions/_tidemq",
        "usr/share/fish/vendor_completions.d/tidemq.fish",
        "usr/share/doc/tidemq/tidemq.cdx.json",
    ):
        assert (container.root / path).is_file(), path
    place = str(ROOT).encode()
    files = [path for path in files_of(container, "usr/lib/tidemq") if path.is_file()]
    assert not [path for path in files if place in path.read_bytes()]
    assert "rocksdict" in (container.root / "usr/share/doc/tidemq/tidemq.cdx.json").read_text()
