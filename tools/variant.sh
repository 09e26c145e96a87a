#!/usr/bin/env bash
# Builds another variant of the compiled modules into build/variant-NAME and runs Python on them:
#   tools/variant.sh address|thread|assert|symbols ARGUMENT...
# The arguments are Python's; none only builds. The status is not 0 when the program fails or a sanitizer reports
# anything. PYTHON names the interpreter; gcc's runtime of a sanitizer is installed where it is missing (Debian).
set -euo pipefail
cd "$(dirname "$0")/.."
kind=$1
shift
python=$(realpath --no-symlinks "${PYTHON:-.venv/bin/python}")
tree=$PWD/build/variant-$kind

runtime() { # LIBRARY PACKAGE: the runtime's path, from gcc's own folder
    [ -e "$(g++ -print-file-name="$1")" ] || apt-get install --yes --quiet=2 "$2" >&2
    realpath "$(g++ -print-file-name="$1")"
}

copy_sources() { # for sanitizers the load tools stay out: what they measure is checked, not they
    mkdir -p "$tree/src" "$tree/build"
    find "$tree/src" -name '*.py*' -not -name '*.pyc' -printf '%P\n' | while read -r file; do
        [ -e "src/$file" ] || rm "$tree/src/$file"
    done
    local left_out=./tidemq/bench
    [ "$kind" = address ] || [ "$kind" = thread ] || left_out=./none
    (cd src && find . -path "$left_out" -prune -o \( -name '*.py' -o -name '*.p[xy][di]' -o -name '*.h' -o -path '*/admin/page/*' \) -print0 |
        xargs -0 cp --update --parents --preserve=timestamps --target-directory="$tree/src")
    cp --update --preserve=timestamps setup.py pyproject.toml README.md LICENSE "$tree"
    [ ! -d build/cython ] || # what is translated already need not be again
        cp --update --recursive --preserve=timestamps --no-target-directory build/cython "$tree/build/cython-$kind"
}

reuse_modules() { # only the engine has invariants: all else is as it is in the build that is there
    mkdir -p "$tree/build/lib-$kind"
    (cd src && find . -name '*.so' -not -path './tidemq/engine/*' -print0 |
        xargs --null --no-run-if-empty cp --update --parents --preserve=timestamps --target-directory="$tree/build/lib-$kind")
}

build() {
    copy_sources
    [ "$kind" != assert ] || reuse_modules
    cd "$tree"
    TIDEMQ_BUILD=$kind "$python" setup.py --quiet build_ext --inplace --parallel 2 >build/build.log 2>&1 || {
        tail -n 40 build/build.log
        exit 1
    }
    cd - >/dev/null
}

build
[ $# -gt 0 ] || exit 0

if [ "$kind" != address ] && [ "$kind" != thread ]; then
    PYTHONPATH=$tree/src:$PWD/tests exec "$python" "$@"
fi

# Python's own allocator would hide the ends of its blocks; its leaks at exit are its own
export PYTHONPATH=$tree/src:$PWD/tests PYTHONMALLOC=malloc
rm -f "$tree"/report.*
status=0
if [ "$kind" = address ]; then
    export ASAN_OPTIONS=log_path=$tree/report:detect_leaks=${LEAKS:-0}:detect_stack_use_after_return=1:strict_string_checks=1
    export LSAN_OPTIONS=suppressions=$PWD/tools/leaks.txt:print_suppressions=0
    export LD_PRELOAD="$(runtime libasan.so libasan8) $(runtime libstdc++.so.6 libstdc++6)"
    "$python" "$@" || status=$?
else
    # gcc's runtime does not know address space layouts as random as newer kernels make them
    export TSAN_OPTIONS=log_path=$tree/report:suppressions=$PWD/tools/races.txt:history_size=7:second_deadlock_stack=1
    LD_PRELOAD="$(runtime libtsan.so libtsan2) $(runtime libstdc++.so.6 libstdc++6)" setarch --addr-no-randomize \
        "$python" "$@" || status=$?
fi
unset LD_PRELOAD
if compgen -G "$tree/report.*" >/dev/null; then
    head -n 400 "$tree"/report.*
    status=1
fi
exit $status
