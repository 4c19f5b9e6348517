#!/usr/bin/env bash
# Installs what optional tests use, so that they are not skipped: real NBD clients, independent implementations of the disk
# format, a browser for the report, a second allocator of threads to compare with. Debian or Ubuntu, as root; elsewhere it says
# so and the tests skip.
set -uo pipefail
packages=(fio nbdkit libnbd-bin cryptsetup-bin qemu-utils python3-cryptography libtbb-dev valgrind chromium)
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "skipped: installing ${packages[*]} needs apt-get and root"
    exit 0
fi
missing=()
for p in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >/dev/null 2>&1 || true
for p in "${missing[@]}"; do
    apt-get install -y -q --no-install-recommends "$p" >/dev/null 2>&1 || echo "skipped: $p could not be installed"
done
exit 0
