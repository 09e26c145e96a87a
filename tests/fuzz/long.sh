#!/usr/bin/env bash
# A long run of the parser's fuzz target with libFuzzer: ./tests/fuzz/long.sh [SECONDS] [SEED]
# Builds the wire format once more under build/fuzz, with clang's coverage counters and address sanitizer, so that
# atheris sees the branches of the compiled code. Needs clang, and atheris (`.venv/bin/pip install atheris`).
# New inputs are kept in build/fuzz/found; a failing one is written to crash-<hash>.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
tree=build/fuzz/tree

mkdir -p "$tree/src/tidemq/wire" "$tree/build"
cp setup.py pyproject.toml README.md LICENSE "$tree"
cp src/tidemq/{__init__.py,__init__.pxd,errors.py} "$tree/src/tidemq"
cp src/tidemq/wire/*.py src/tidemq/wire/*.pxd "$tree/src/tidemq/wire"
(cd "$tree" && TIDEMQ_BUILD=address,fuzzer-no-link CC=clang CXX=clang++ \
    LDSHARED="clang -shared" LDCXXSHARED="clang++ -shared" \
    "$python" setup.py --quiet build_ext --inplace --parallel 2)

runtime=$("$python" -c 'import atheris, pathlib; print(pathlib.Path(atheris.__file__).parents[1])')
env LD_PRELOAD="$runtime/asan_with_fuzzer.so" ASAN_OPTIONS=detect_leaks=0 PYTHONPATH="$tree/src" \
    "$python" tests/fuzz/fuzz_wire.py --engine atheris --seconds "${1:-600}" --seed "${2:-1}"
