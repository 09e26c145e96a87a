"""The engine calls the operating system in one module, which a build may put another in the place of."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path

SYSTEM = Path("engine/base/system.pxd")
OF_THE_SYSTEM = re.compile(r"cython\.cimports\.(posix|libc\.(errno|time|signal))\b")
EXTERN = re.compile(r'^cdef extern from "(.*?)"', re.MULTILINE)
CIMPORT = re.compile(r"^from (posix[\w.]*|libc\.(?:errno|time|signal)) cimport", re.MULTILINE)


def test_nothing_else_of_the_engine_names_a_header_of_the_system(
    trees: dict[Path, ast.Module], declarations: dict[Path, str]
) -> None:
    wrong = [
        f"{path}: {node.module}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if path.parts[0] == "engine"
        and isinstance(node, ast.ImportFrom)
        and OF_THE_SYSTEM.match(node.module or "")
    ]
    for path, text in declarations.items():
        if path.parts[0] == "engine":
            wrong += [f"{path}: {header}" for header in EXTERN.findall(text) if header != "system.h"]
            wrong += [f"{path}: {module}" for module in CIMPORT.findall(text)]
            wrong += [f"{path}: system.h"] * (path != SYSTEM and "system.h" in EXTERN.findall(text))
    assert not wrong
    assert len(EXTERN.findall(declarations[SYSTEM])) > 10


def test_a_build_may_have_another_in_its_place(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.h"
    other.write_text('#include "system.h"\n#define recv another_recv\n')
    source = tmp_path / "call.cpp"
    source.write_text('#include "system.h"\nlong call() { char one; return recv(0, &one, 1, 0); }\n')
    compiler = shutil.which("g++")
    assert compiler is not None
    command = [compiler, "-E", f"-I{root / 'src/tidemq/engine/base'}", str(source)]
    plain = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    chosen = subprocess.run(
        [*command, f'-DTIDEMQ_SYSTEM="{other}"'], check=True, capture_output=True, text=True
    ).stdout
    assert "return recv(0," in plain
    assert "return another_recv(0," in chosen
