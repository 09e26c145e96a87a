"""The data plane is compiled and takes no GIL on its way; the build refuses a performance hint."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import os
import shutil
import subprocess
import sys
from pathlib import Path

# of the data plane, what only the control plane calls and what declares names
NOT_COMPILED = {
    "engine/door/rule_row.py",
    "engine/door/topic_rule_rows.py",
    "wire/codes.py",
    "wire/control_packets.py",
    "wire/decoder.py",
    "wire/faults.py",
    "wire/payloads.py",
    "wire/filters.py",  # for programs and the control plane; the engine has its own
    "engine/door/events.py",
    "engine/door/figures.py",
    "engine/door/listeners.py",
}


def test_the_data_plane_is_compiled(trees: dict[Path, ast.Module], declarations: dict[Path, str]) -> None:
    data_plane = {
        path for path in trees if path.parts[0] in ("wire", "net", "engine") and path.stem != "__init__"
    }
    compiled = {path.with_suffix(".py") for path in declarations}
    assert {str(path) for path in data_plane - compiled} == NOT_COMPILED


def test_extensions_are_loaded(trees: dict[Path, ast.Module], declarations: dict[Path, str]) -> None:
    compiled = [path for path in declarations if path.stem != "__init__" and path.with_suffix(".py") in trees]
    assert len(compiled) > 30
    for path in compiled:
        module = importlib.import_module(".".join(["tidemq", *path.with_suffix("").parts]))
        assert str(module.__file__).endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)), module


def test_signatures_stand_in_the_declarations_alone(
    trees: dict[Path, ast.Module], declarations: dict[Path, str]
) -> None:
    """So each is said once, and what a function may do without the GIL is read in one place."""
    said_twice = []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                decorators = {ast.unparse(each).partition("(")[0] for each in node.decorator_list}
                if decorators & {"cython.cfunc", "cython.ccall", "cython.nogil", "cython.exceptval"}:
                    said_twice.append(f"{path}:{node.lineno} {node.name}")
    assert said_twice == []
    found = 0
    for path, text in declarations.items():
        for line in text.splitlines():
            if line.rstrip().endswith("nogil") and ")" in line:
                found += 1
                assert "noexcept nogil" in line, f"{path}: {line}"
    assert found > 800


def test_an_empty_passage_has_every_field(
    trees: dict[Path, ast.Module], declarations: dict[Path, str]
) -> None:
    struct = (
        declarations[Path("engine/base/message.pxd")]
        .partition("cdef struct Passage:\n")[2]
        .partition("\n\n")[0]
    )
    fields = {line.partition("#")[0].split()[-1] for line in struct.splitlines() if not line.startswith("#")}
    [function] = [
        node
        for node in ast.walk(trees[Path("engine/base/message.py")])
        if isinstance(node, ast.FunctionDef) and node.name == "empty_passage"
    ]
    emptied = {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    assert len(fields) > 20
    assert emptied == fields


HINTING = """
import cython

@cython.cfunc
@cython.nogil
def add(a: cython.int) -> cython.void:
    pass

def call():
    add(1)
"""


def test_the_build_refuses_a_performance_hint(root: Path, tmp_path: Path) -> None:
    package = tmp_path / "src" / "hinting"
    package.mkdir(parents=True)
    shutil.copy(root / "setup.py", tmp_path)
    (package / "__init__.py").touch()
    (package / "module.pxd").touch()
    (package / "module.py").write_text(HINTING)
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    for _ in range(2):  # what has failed once fails again
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0
        assert "1 performance hints in src/hinting/module.py" in done.stderr


# as g++, but where it links it writes half a module, and the build is killed
KILLING = """#!/bin/sh
out=
for word in "$@"; do
    [ "$last" = -o ] && out=$word
    last=$word
done
case " $* " in
    *" -shared "*) : > "$out"; kill -9 $PPID; exit 1 ;;
esac
exec g++ "$@"
"""


PROJECT = "[project]\nname = 'killed'\nversion = '1'\n[tool.setuptools.packages.find]\nwhere = ['src']\n"


def test_a_build_that_was_killed_is_done_again(root: Path, tmp_path: Path) -> None:
    package = tmp_path / "src" / "killed"
    package.mkdir(parents=True)
    shutil.copy(root / "setup.py", tmp_path)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").touch()
    (package / "module.pxd").touch()
    (package / "module.py").write_text("ANSWER = 42\n")
    compiler = tmp_path / "killing"
    compiler.write_text(KILLING)
    compiler.chmod(0o755)
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", "--parallel=1"]
    names = ("CC", "CXX", "LDSHARED", "LDCXXSHARED")
    shared = f"{compiler} -shared"
    killing = dict(zip(names, (str(compiler), str(compiler), shared, shared), strict=True))
    killed = subprocess.run(command, cwd=tmp_path, env=os.environ | killing, capture_output=True, timeout=60)
    assert killed.returncode == -9
    for _ in range(2):
        subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
        assert not list(tmp_path.rglob("*.unfinished"))
        [module] = package.glob("*.so")
        told = [sys.executable, "-c", "import killed.module as m; print(m.__file__, m.ANSWER)"]
        done = subprocess.run(told, cwd=tmp_path / "src", capture_output=True, check=True, timeout=60)
        assert done.stdout.decode() == f"{module} 42\n"
        module.write_bytes(b"")  # a copy that was cut off
