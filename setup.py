"""Builds the compiled modules: a ``.py`` file with a ``.pxd`` beside it is compiled, any other is not.

``TIDEMQ_BUILD`` names another build: ``address`` or ``thread`` for that sanitizer (``make asan``, ``make
race``), ``assert`` with invariants checked (``make assert``), ``symbols`` with what profilers want, ``none``
where nothing is to be compiled: `make setup` installs the package while another process compiles it.
``TIDEMQ_SYSTEM`` is the full path of a header that takes the place of the operating system's calls, see
``engine/base/system.h``.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path("src")
BUILD = os.environ.get("TIDEMQ_BUILD", "")
SYSTEM = os.environ.get("TIDEMQ_SYSTEM", "")
VARIANT = ("-" + BUILD if BUILD else "") + ("-system" if SYSTEM else "")
TRANSLATED = Path("build", "cython" + VARIANT)  # the C++ files
HEADERS = Path("build", "headers" + VARIANT, "headers.h")  # what most of them include
PLACES = {"build_lib": f"build/lib{VARIANT}", "build_temp": f"build/objects{VARIANT}"}

# translating processes; where they would run this file again there are none
THREADS = (os.cpu_count() or 1) if multiprocessing.get_start_method() == "fork" else 0

# -g0: Python's own flags ask for symbols, which are nine tenths of a module
FLAGS = {"": ["-O2", "-g0"], "symbols": ["-O2", "-g"], "assert": ["-O0", "-g1", "-DTIDEMQ_ASSERT"]}
SANITIZERS = [f"-fsanitize={BUILD}", "-fno-omit-frame-pointer"] if BUILD not in FLAGS else []

compile_args = ["-std=c++17", "-fno-strict-aliasing", "-Wno-unused-function"]
compile_args += FLAGS.get(BUILD, ["-O1", "-g", *SANITIZERS])
if SYSTEM:
    compile_args.append(f'-DTIDEMQ_SYSTEM="{SYSTEM}"')
link_args = SANITIZERS or (["-s"] if BUILD == "" else [])

INCLUDED = """\
#define PY_SSIZE_T_CLEAN
#include "Python.h"
#include "compile.h"
#include "frameobject.h"
#include "pythread.h"
#include <arpa/inet.h>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <ios>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/random.h>
#include <unordered_map>
#include <unordered_set>
#include <vector>
"""


def compiled_modules() -> list[Extension]:
    """One extension per ``.py`` file that has a ``.pxd`` beside it."""
    paths = sorted(p.with_suffix(".py") for p in SOURCE.rglob("*.pxd") if p.stem != "__init__")
    return [
        Extension(
            ".".join(path.relative_to(SOURCE).with_suffix("").parts),
            [str(path)],
            language="c++",
            include_dirs=[str(SOURCE / "tidemq/engine/base")],  # system.h
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


def remove_left_over() -> None:
    """Compiled modules whose source was moved or removed would still be found, and go into the wheel."""
    for folder in (SOURCE, Path(PLACES["build_lib"])):
        for path in folder.rglob("*.so.unfinished"):
            path.unlink()
        for path in folder.rglob("*.so"):
            if not (SOURCE / path.relative_to(folder)).with_name(f"{path.name.split('.')[0]}.pxd").exists():
                path.unlink()


def link_whole(link: Callable[..., None], objects: list[str], output: str, *rest: Any, **named: Any) -> None:
    """Links under another name first: half a module of a build that was killed would be newer than its
    source, and never linked again.
    """
    unfinished = f"{output}.unfinished"
    link(objects, unfinished, *rest, **named)
    os.replace(unfinished, output)


class BuildExtensions(build_ext):
    """Compiles on all cores, and once: an editable installation, ``make build`` and the wheel share the
    objects.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()
        # also where pip wants it elsewhere, and compiled anew
        self.build_lib, self.build_temp = PLACES["build_lib"], PLACES["build_temp"]

    def compile_headers(self) -> None:
        """Once, which takes as long as eight modules read them. A module that is compiled with other flags
        reads the text.
        """
        of = " ".join([sys.version, *self.compiler.compiler_so_cxx, *compile_args]).replace("\n", " ")
        text, compiled = f"// {of}\n{INCLUDED}", HEADERS.with_name(f"{HEADERS.name}.gch")
        if compiled.exists() and HEADERS.read_text() == text:
            return
        HEADERS.parent.mkdir(parents=True, exist_ok=True)
        compiled.unlink(missing_ok=True)
        HEADERS.write_text(text)
        folders = [f"-I{folder}" for folder in self.compiler.include_dirs]
        command = [*self.compiler.compiler_so_cxx, *folders, *compile_args, "-x", "c++-header", str(HEADERS)]
        subprocess.run([*command, "-o", f"{compiled}.unfinished"], check=True)
        os.replace(f"{compiled}.unfinished", compiled)

    def build_extensions(self) -> None:
        if len(self.extensions) > 8:
            self.compile_headers()
            for extension in self.extensions:
                extension.extra_compile_args = [*compile_args, "-include", str(HEADERS)]
        link = self.compiler.link_shared_object
        self.compiler.__dict__["link_shared_object"] = partial(link_whole, link)
        super().build_extensions()

    def copy_file(self, infile: str, outfile: str, *rest: Any, **named: Any) -> tuple[str, bool]:
        """As `link_whole` links; the copy beside the source is also made again where it is not the same."""
        made, there = os.stat(infile), os.stat(outfile) if os.path.exists(outfile) else None
        if there is not None and (made.st_size, made.st_mtime_ns) == (there.st_size, there.st_mtime_ns):
            return outfile, False
        super().copy_file(infile, f"{outfile}.unfinished", *rest, **named)
        os.replace(f"{outfile}.unfinished", outfile)
        return outfile, True

    def run(self) -> None:
        super().run()
        remove_left_over()


# Few objects of a translation become garbage: looking for it as often as Python does took half the time.
gc.set_threshold(50_000, 10, 5)

with hints_refused():
    extensions = cythonize(
        compiled_modules() if BUILD != "none" else [],
        build_dir=str(TRANSLATED),
        nthreads=THREADS,
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
