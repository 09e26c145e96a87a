"""Plants a break of an invariant: one changed module, compiled into a copy of the build that checks them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from assertions.planted import Break
from assertions.variant import ROOT, TREE, environment, pytest_arguments

# setup.py's own flags and places, for one module
COMPILE = """
import sys
sys.argv = ["setup.py", "--quiet", "build_ext", "--inplace"]
import setuptools
whole = setuptools.setup
def of_one(**arguments):
    arguments["ext_modules"] = [each for each in arguments["ext_modules"] if each.name == {name!r}]
    whole(**arguments)
setuptools.setup = of_one
import Cython.Build
translate = Cython.Build.cythonize
def only(modules, **arguments):
    return translate([each for each in modules if each.name == {name!r}], **{{**arguments, "nthreads": 0}})
Cython.Build.cythonize = only
exec(compile(open("setup.py").read(), "setup.py", "exec"))
"""


def link(source: Path, target: Path) -> None:
    """`target` gets the folders of `source`, and its files as hard links."""
    shutil.copytree(
        source, target, copy_function=lambda one, other: Path(other).hardlink_to(one), dirs_exist_ok=True
    )


def break_module(planted: Break, tree: Path) -> None:
    """Makes `tree`: the build, with the break in it.

    Raises ValueError where the text to be changed is not there once, and CalledProcessError where the changed
    module does not compile.
    """
    link(TREE / "src", tree / "src")
    for file in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree)
    path = tree / "src/tidemq/engine" / planted.file
    text = path.read_text()
    if text.count(planted.old) != 1:
        raise ValueError(f"{planted.file} has {text.count(planted.old)} times: {planted.old}")
    path.unlink()  # the link: the file itself is the build's
    path.write_text(text.replace(planted.old, planted.new))
    for module in path.parent.glob(f"{path.stem}.*.so"):
        module.unlink()
    name = ".".join(["tidemq.engine", *Path(planted.file).with_suffix("").parts])
    subprocess.run(
        [sys.executable, "-c", COMPILE.format(name=name)],
        cwd=tree,
        env=environment(TIDEMQ_BUILD="assert"),
        check=True,
        capture_output=True,
        text=True,
    )


def said_of(planted: Break) -> str:
    """What the tests of the break say, and their brokers."""
    with tempfile.TemporaryDirectory(dir=TREE / "build", prefix="break-") as folder:
        tree = Path(folder)
        break_module(planted, tree)
        done = subprocess.run(
            [sys.executable, *pytest_arguments("-x", f"--basetemp={tree / 'tmp'}", *planted.tests)],
            cwd=ROOT,
            env=environment(PYTHONPATH=f"{tree / 'src'}:{ROOT / 'tests'}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        logs = [path.read_text(errors="replace") for path in (tree / "tmp").rglob("*.log")]
    return "\n".join([done.stdout, *logs])
