"""`python tests/assertions [WORDS]`: plants each break, or those of invariants with WORDS in them.

The exit status is 1 when the build has not found one of them.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from assertions.breaks import PLANTED
from assertions.plant import said_of
from assertions.planted import Break
from assertions.variant import built


def tried(planted: Break) -> bool:
    """Whether the build finds the break; what it found in its place is printed."""
    began_s = time.monotonic()
    try:
        said = said_of(planted)
    except ValueError as error:
        said = str(error)
    except subprocess.CalledProcessError as error:
        said = f"it does not compile:\n{error.stdout[-3000:]}{error.stderr[-3000:]}"
    found = f"invariant broken: {planted.invariant}\n" in said
    print(
        f"{'found' if found else 'NOT FOUND':10}{planted.invariant} ({time.monotonic() - began_s:.0f} s)",
        flush=True,
    )
    if not found:
        others = {line for line in said.splitlines() if line.startswith("invariant broken: ")}
        print("\n".join(sorted(others)) or said[-3000:], flush=True)
    return found


def main(words: str) -> int:
    if built().returncode:
        print(built().stdout)
        return 1
    chosen = [each for each in PLANTED if words in each.invariant]
    missed = [each for each in chosen if not tried(each)]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} breaks found")
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
