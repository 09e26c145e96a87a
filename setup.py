"""Builds the compiled modules: a ``.py`` file with a ``.pxd`` beside it is compiled, any other is not.

``TIDEMQ_SANITIZE=address|thread`` builds for that sanitizer (see ``make asan`` and ``make race``).
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path("src")
SANITIZER = os.environ.get("TIDEMQ_SANITIZE", "")
VARIANT = "-" + SANITIZER if SANITIZER else ""
TRANSLATED = Path("build", "cython" + VARIANT)  # the C++ files
PLACES = {"build_lib": f"build/lib{VARIANT}", "build_temp": f"build/objects{VARIANT}"}

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


@contextmanager
def hints_refused() -> Iterator[None]:
    """Fails the build on a performance hint: it tells of a function that takes the GIL or makes Python
    objects where none was meant. Cython itself can only print it.
    """
    with tempfile.TemporaryFile("w+") as report:
        sys.stderr.flush()
        terminal = os.dup(2)
        os.dup2(report.fileno(), 2)  # the descriptor: Cython's worker processes write to it as well
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            report.seek(0)
            text = report.read()
            sys.stderr.write(text)
    hints = re.findall(r"^performance hint: (.+?):\d+:\d+: .*", text, re.MULTILINE)
    for path in hints:  # what is translated already would not be looked at again by the next build
        TRANSLATED.joinpath(path).with_suffix(".cpp").unlink(missing_ok=True)
    if hints:
        sys.exit(f"{len(hints)} performance hints in {', '.join(sorted(set(hints)))}: the build is refused")


class BuildExtensions(build_ext):
    """Compiles on all cores, and once: an editable installation, ``make build`` and the wheel share the
    objects.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()
        # also where pip wants it elsewhere, and compiled anew
        self.build_lib, self.build_temp = PLACES["build_lib"], PLACES["build_temp"]


with hints_refused():
    extensions = cythonize(
        compiled_modules(),
        build_dir=str(TRANSLATED),
        show_all_warnings=False,
        quiet=True,
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": True,
        },
    )

setup(ext_modules=extensions, cmdclass={"build_ext": BuildExtensions}, options={"build": PLACES})
