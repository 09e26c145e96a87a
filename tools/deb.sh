#!/bin/sh
# Builds the Debian package into DIR: tools/deb.sh DIR. What the build needs is installed if root runs this, else
# named. It takes 3 minutes, later ones compile only what has changed.
set -eu

out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")/.."
tree=$PWD/build/deb/tidemq

if ! command -v dpkg-checkbuilddeps > /dev/null || ! dpkg-checkbuilddeps 2> /dev/null; then
    if [ "$(id -u)" -eq 0 ]; then
        apt-get -qq update
        DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends dpkg-dev > /dev/null
        DEBIAN_FRONTEND=noninteractive apt-get -qq build-dep --yes --no-install-recommends ./ > /dev/null
    fi
    dpkg-checkbuilddeps # ends this, with what is missing
fi

# a tree of its own, with what git knows: what was compiled here is of another Python
mkdir -p "$tree"
find "$tree" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
git ls-files -z --cached --others --exclude-standard | tar --create --null --files-from=- --ignore-failed-read | tar --extract --directory="$tree"
rm -f "$out"/tidemq_*.deb build/deb/tidemq_*
(cd "$tree" && dpkg-buildpackage --build=binary --no-sign --no-pre-clean)
cp build/deb/tidemq_*.deb "$out"
ls -l "$out"/tidemq_*.deb
