"""The wheel holds what it should and nothing else, and works in its own environment, the source tree hidden.

`TIDEMQ_TEST_WHEEL=whole` (`make wheel-test`) runs all tests of behaviour against it, else a short choice.
"""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHORT = [
    "unit/test_wire_packets.py",
    "unit/test_engine_trees.py",
    "unit/test_broker_engine.py",
    "unit/test_config.py",
    "conformance/test_qos2.py",
    "clients/test_paho.py",
    "testing/test_fixtures.py",
]
WHOLE = ["unit", "cli", "store", "conformance", "clients", "adversity", "bench", "testing"]
ABOUT_THE_SOURCE = "--ignore=unit/test_docs.py"

pytestmark = pytest.mark.timeout(2400)


def test_its_files(wheel: Path) -> None:
    source = ROOT / "src"
    python = [path for end in ("*.py", "*.pyi", "*.pxd", "*.h", "py.typed") for path in source.rglob(end)]
    page = (source / "tidemq/broker/admin/page").iterdir()
    wanted = {str(path.relative_to(source)) for path in (*python, *page)}
    compiled = {
        str(path.relative_to(source).with_suffix(""))
        for path in source.rglob("*.pxd")
        if path.stem != "__init__" and path.with_suffix(".py").exists()
    }
    names = zipfile.ZipFile(wheel).namelist()
    extensions = {name for name in names if name.endswith(".so")}
    others = {name for name in names if name not in extensions and ".dist-info/" not in name}
    assert others == wanted
    assert "tidemq/py.typed" in others
    assert {name.split(".")[0] for name in extensions} == compiled, "remove the folder build"
    (entry_points,) = [name for name in names if name.endswith(".dist-info/entry_points.txt")]
    text = zipfile.ZipFile(wheel).read(entry_points).decode()
    assert "tidemq = tidemq.cli:main" in text
    assert "[tidemq.stores]\nmemory = " in text
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]


def test_its_behaviour(wheel: Path, run: Callable[..., str], tmp_path: Path) -> None:
    whole = os.environ.get("TIDEMQ_TEST_WHEEL") == "whole"
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--disable-pip-version-check",
        f"{wheel}[{'test' if whole else 'test-short'}]",
        cwd=tmp_path,
    )
    place = run(
        python, "-c", "import tidemq.engine.turn.reactor as m; print(m.__file__)", cwd=tmp_path
    ).strip()
    assert Path(place).is_relative_to(environment)
    assert place.endswith(".so")
    for folder in ("tests", "examples", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)  # its settings of pytest
    tests = ["-n", "4", *WHOLE] if whole else SHORT
    said = run(python, "-m", "pytest", *tests, ABOUT_THE_SOURCE, cwd=tmp_path / "tests")
    assert " passed" in said
    print(said)
    command = environment / "bin" / "tidemq"
    assert "serve" in run(command, "--help", cwd=tmp_path)
