"""The hash of tables whose keys strangers choose: SipHash-1-3, to which collisions of std::hash are none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from adversity.collisions import colliding

HEADER = Path(__file__).parents[2] / "src/tidemq/engine/base/hashing.pxd"

pytestmark = pytest.mark.skipif(
    not HEADER.exists() or shutil.which("g++") is None, reason="needs the source tree and g++"
)

PROGRAM = r"""
#include <cstdio>
#include <cinttypes>
#include <iostream>
#include <unordered_set>

template <class Table> size_t longest(const Table& table) {
    size_t most = 0;
    for (size_t at = 0; at < table.bucket_count(); ++at) most = std::max(most, table.bucket_size(at));
    return most;
}

int main() {
    SeededHash fixed;
    fixed.key[0] = fixed.key[1] = 0;
    std::unordered_set<std::string> plain;
    std::unordered_set<std::string, SeededHash> seeded;
    std::string key;
    while (std::getline(std::cin, key, '\0')) {
        plain.insert(key);
        seeded.insert(key);
    }
    printf("%zu %zu %zu\n", plain.size(), longest(plain), longest(seeded));
    for (size_t size = 0; size < 40; ++size)
        printf("%" PRId64 "\n", static_cast<int64_t>(fixed.of(std::string(size, 'a').data(), size)));
}
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("hashing")
    source = HEADER.read_text().split('cdef extern from * nogil:\n    """\n', 1)[1].split('    """', 1)[0]
    (folder / "hashing.cpp").write_text(source + PROGRAM)
    subprocess.run(["g++", "-std=c++17", "-o", folder / "hashing", folder / "hashing.cpp"], check=True)
    keys = b"".join(key + b"\0" for key in colliding(3000))
    return (
        subprocess.run([folder / "hashing"], input=keys, stdout=subprocess.PIPE, check=True)
        .stdout.decode()
        .split("\n")
    )


def test_collisions_for_std_hash_are_none_for_ours(output: list[str]) -> None:
    count, plain, seeded = map(int, output[0].split())
    assert count == 3000
    assert plain == 3000, "the keys do not collide in std::hash any more: the test tests nothing"
    assert seeded <= 12  # of as many random ones: 9 or 10 at the very most


def test_it_is_siphash_1_3(output: list[str]) -> None:
    if sys.hash_info.algorithm != "siphash13":
        pytest.skip("Python has another hash to compare with")
    code = "print(*(hash(b'a' * size) for size in range(1, 40)), sep='\\n')"
    environment = os.environ | {"PYTHONHASHSEED": "0"}  # its key is 0 then
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True)
    assert output[2:41] == done.stdout.decode().split()
