"""The numbers for Python are those for compiled code, and an uncompiled package says how to build it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from enum import IntEnum
from importlib import resources
from pathlib import Path

import pytest
from waiting import WAIT_S

import tidemq
from tidemq.wire import Fault, PacketType, PropertyId, ReasonCode


@pytest.mark.parametrize(
    ("kind", "prefix"), [(PacketType, ""), (ReasonCode, "RC_"), (PropertyId, "PROP_"), (Fault, "FAULT_")]
)
def test_enumeration_equals_that_of_protocol_pxd(kind: type[IntEnum], prefix: str) -> None:
    source = resources.files("tidemq.wire").joinpath("protocol.pxd").read_text()
    block = re.search(rf"cdef enum {kind.__name__}:.*\n((?:    (?:\w+ = \w+|#).*\n)+)", source)
    assert block is not None
    members = re.findall(r"^    (\w+) = (\w+)", block[1], re.MULTILINE)
    numbers = {name.removeprefix(prefix): int(value, 0) for name, value in members}
    count = numbers.pop("COUNT", None)
    assert numbers == {member.name: member.value for member in kind}
    assert count in (None, len(kind))


def test_uncompiled_package_says_how_to_build(tmp_path: Path) -> None:
    copy = tmp_path / "tidemq"
    shutil.copytree(Path(tidemq.__file__).parent, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for blocked in ("", "sys.modules['cython'] = None; "):  # with Cython beside it, and without
        code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {blocked}import tidemq.wire"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        assert done.returncode == 1
        assert "make build" in done.stderr.splitlines()[-1]
