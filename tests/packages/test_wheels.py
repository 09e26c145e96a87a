"""The settings of cibuildwheel name the wheels that are meant. To build them needs containers, and arm64."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = str(Path(sys.executable).with_name("cibuildwheel"))
LIBRARIES = ("manylinux", "musllinux")
PROCESSORS = ("x86_64", "aarch64")


def test_a_wheel_for_each_python_library_and_processor() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [re.search(r"Python :: 3\.(\d+)$", each) for each in project["classifiers"]]
    pythons = [f"cp3{found[1]}" for found in texts if found]
    assert len(pythons) >= 3
    command = [COMMAND, "--platform", "linux", "--print-build-identifiers"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    wanted = {f"{each}-{library}_{of}" for each in pythons for library in LIBRARIES for of in PROCESSORS}
    assert set(done.stdout.split()) == wanted


def test_what_each_wheel_has_to_pass_is_there() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    paths = re.findall(r"\{project\}/(\S+)", settings["test-command"])
    assert len(paths) > 3
    assert not [path for path in paths if not (ROOT / path).is_file()]
    for library in LIBRARIES:
        images = {settings["linux"][f"{library}-{of}-image"] for of in PROCESSORS}
        assert len(images) == 1, "each processor has the same library"
