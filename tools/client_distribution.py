"""Builds the distribution `tidemq-client`: the client library alone, with nothing that it depends on.

    python tools/client_distribution.py dist     # a wheel; --sdist for the source as well

It has the same files as `tidemq`, which has all of them: one of the two belongs into an environment.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PLACE = Path("build", "client")
FILES = ("__init__.py", "errors.py", "limits.py", "py.typed")  # of the package
PARTS = ("wire", "client")
KINDS = (".py", ".pyi", ".pxd")
EXTRAS = {  # and whose requirements they have
    "websocket": ("websockets",),
    "scram": ("scramp",),
    "streams": ("pyarrow", "crc32c"),
}
_PROJECT = """\
[build-system]
requires = {requires}
build-backend = "setuptools.build_meta"

[project]
name = "tidemq-client"
version = "{version}"
description = "TideMQ's MQTT 3.1, 3.1.1 and 5.0 client, asynchronous and blocking, without the broker."
readme = "README.md"
requires-python = "{python}"
license = "{license}"
license-files = ["LICENSE"]

[project.optional-dependencies]
{extras}

[tool.setuptools.packages.find]
where = ["src"]

[tool.setuptools.package-data]
tidemq = ["py.typed", "**/*.pxd", "**/*.pyi"]
"""


def requirement(project: dict[str, Any], name: str) -> str:
    """What the whole distribution requires of that package."""
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    found: str = next(each for found in lists for each in found if each.startswith(name) and each != name)
    return found


def project_text() -> str:
    """Its pyproject.toml, from the whole distribution's."""
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = whole["project"]
    extras = [
        f"{extra} = {json.dumps([requirement(project, name) for name in names])}"
        for extra, names in EXTRAS.items()
    ]
    return _PROJECT.format(
        requires=json.dumps(whole["build-system"]["requires"]),
        version=project["version"],
        python=project["requires-python"],
        license=project["license"],
        extras="\n".join(extras),
    )


def lay_out(folder: Path) -> None:
    """The source of the distribution; what is compiled already comes along, with its times."""
    shutil.rmtree(folder, ignore_errors=True)
    package = Path("src", "tidemq")
    wanted = [package / name for name in FILES]
    wanted += [Path("setup.py"), Path("LICENSE")]
    for part in PARTS:
        found = (ROOT / package / part).rglob("*")
        wanted += [path.relative_to(ROOT) for path in found if path.suffix in KINDS]
        for built in (Path("build", "lib", "tidemq", part), Path("build", "cython", package, part)):
            if (ROOT / built).exists():
                shutil.copytree(
                    ROOT / built, folder / built, ignore=shutil.ignore_patterns("*.py", "*.pyi", "*.pxd")
                )
    for path in wanted:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, folder / path)
    shutil.copy2(ROOT / "docs" / "client.md", folder / "README.md")
    (folder / "pyproject.toml").write_text(project_text())


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the wheel goes")
    parser.add_argument("--sdist", action="store_true", help="the source distribution as well")
    options = parser.parse_args()
    lay_out(ROOT / PLACE)
    kinds = ["--wheel", *(["--sdist"] if options.sdist else [])]
    command = [sys.executable, "-m", "build", *kinds, "--no-isolation", "--outdir", options.folder.resolve()]
    subprocess.run(command, cwd=ROOT / PLACE, check=True)


if __name__ == "__main__":
    main()
