"""The list of what an installation is made of (CycloneDX): all that the wheel asks for, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
EXTRAS = {"streams", "auth"}
COMMAND = Path(sys.executable).with_name("cyclonedx-py")


def needed(extras: set[str]) -> dict[str, str]:
    """The versions, by name, of all distributions that tidemq needs with these extras, here and now."""
    found: dict[str, str] = {}
    seen = set()
    left = [("tidemq", extra) for extra in sorted(extras)]
    while left:
        name, extra = left.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        found[canonicalize_name(name)] = distribution(name).version
        for requirement in map(Requirement, distribution(name).requires or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                left += [(requirement.name, each) for each in (requirement.extras or {""})]
    del found["tidemq"]
    return found


def components(list_: Path) -> dict[str, str]:
    """Versions by name."""
    content: dict[str, Any] = json.loads(list_.read_text())
    assert content["bomFormat"] == "CycloneDX"
    root = content["metadata"]["component"]
    assert (root["name"], root["licenses"][0]["license"]["id"]) == ("tidemq", "Apache-2.0")
    assert not re.search(r"file:|(?<!/)/(?:tmp|build)/", list_.read_text())  # nothing of this machine
    return {canonicalize_name(each["name"]): each["version"] for each in content["components"]}


def test_the_list_of_an_environment(tmp_path: Path) -> None:
    """With the metadata alone of what is needed; nothing else of it is looked at."""
    wanted = needed(EXTRAS)
    assert {"rocksdict", "pyarrow", "aiohttp", "cryptography", "pydantic-core"} <= wanted.keys()
    environment, list_ = tmp_path / "environment", tmp_path / "list.json"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    [place] = environment.glob("lib/python3*/site-packages")
    for name in wanted:
        metadata: Any = distribution(name)
        (place / metadata._path.name).symlink_to(metadata._path)
    command: list[str | Path] = [COMMAND, "environment", "--pyproject", ROOT / "pyproject.toml"]
    subprocess.run([*command, "--output-file", list_, environment / "bin/python"], check=True)
    assert components(list_) == wanted


@pytest.mark.long
@pytest.mark.timeout(600)
def test_make_sbom(tmp_path: Path) -> None:
    """As anybody makes it: the wheel, installed."""
    subprocess.run(["make", "sbom"], cwd=ROOT, check=True)
    wanted = needed(EXTRAS)
    assert components(ROOT / "dist/tidemq.cdx.json").keys() == wanted.keys()
