"""Builds the compiled modules: a ``.py`` file with a ``.pxd`` beside it is compiled, any other is not.

``TIDEMQ_SANITIZE=address|thread`` builds for that sanitizer (see ``make asan`` and ``make race``).
"""

from __future__ import annotations

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

SOURCE = Path("src")
SANITIZER = os.environ.get("TIDEMQ_SANITIZE", "")

compile_args = ["-O2", "-g", "-std=c++17", "-fno-strict-aliasing", "-Wno-unused-function"]
link_args = []
if SANITIZER:
    flags = [f"-fsanitize={SANITIZER}", "-fno-omit-frame-pointer"]
    compile_args += [*flags, "-O1"]
    link_args += flags


def compiled_modules() -> list[Extension]:
    """One extension per ``.py`` file that has a ``.pxd`` beside it."""
    paths = sorted(p.with_suffix(".py") for p in SOURCE.rglob("*.pxd") if p.stem != "__init__")
    return [
        Extension(
            ".".join(path.relative_to(SOURCE).with_suffix("").parts),
            [str(path)],
            language="c++",
            extra_compile_args=compile_args,
            extra_link_args=link_args,
        )
        for path in paths
        if path.exists()
    ]


setup(
    ext_modules=cythonize(
        compiled_modules(),
        build_dir="build/cython" + ("-" + SANITIZER if SANITIZER else ""),
        show_all_warnings=False,
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": True,
        },
    ),
)
