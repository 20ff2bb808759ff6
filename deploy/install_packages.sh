#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what Sluice is built from, on Debian 12 or newer and Ubuntu 24.04 or newer: packages, and
# XGrammar by install_xgrammar.sh. Does nothing, and needs no network, when all of it is there.
# --tests: also what tests/run.sh uses. --only: not XGrammar, which a build makes where it is missing.
set -euo pipefail

fail() {
  echo "install_packages.sh: $1" >&2
  exit 1
}

packages=(g++ cmake ninja-build pkg-config ccache curl patch ca-certificates python3 python3-pip python3-venv
  libspdlog-dev libyaml-cpp-dev libcli11-dev nlohmann-json3-dev libexpected-dev libpcre2-dev
  libedit-dev libssl-dev libxxhash-dev libzmq3-dev zlib1g-dev prometheus-cpp-dev libgtest-dev
  libbenchmark-dev libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc)
# Boost's headers, and its fibers for the tests of CUDA kernels. Any one version will do; the first
# that can be had is installed.
boost_versions=(1.81 1.83 1.88)
boost_packages() { # version
  echo "libboost$1-dev libboost-context$1-dev"
}
with_xgrammar=yes
case "${1:-}" in
  "") ;;
  --tests) packages+=(clang-19 libclang-rt-19-dev lld) ;;
  --only) with_xgrammar=no ;;
  *) fail "unknown argument $1; there are --tests and --only" ;;
esac

finish() { # what was done
  if [[ "$with_xgrammar" == no ]]; then
    echo "Packages: $1"
    exit 0
  fi
  local root
  root="$(bash "$(dirname "${BASH_SOURCE[0]}")/install_xgrammar.sh")" ||
    fail "XGrammar cannot be installed, see above"
  echo "Packages: $1; XGrammar in $root"
  exit 0
}

if [[ "${SLUICE_SKIP_PACKAGES:-}" == 1 ]]; then
  finish "skipped, SLUICE_SKIP_PACKAGES=1"
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  fail "this is neither Debian nor Ubuntu. Install the equivalents of: ${packages[*]} \
$(boost_packages "${boost_versions[0]}"); then run again with SLUICE_SKIP_PACKAGES=1"
fi

installed="$(dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' | sed -n 's/^ii *//p')"
is_installed() {
  grep -qxF "$1" <<<"$installed"
}

missing=()
for package in "${packages[@]}"; do
  is_installed "$package" || missing+=("$package")
done
has_boost=no
for version in "${boost_versions[@]}"; do
  if is_installed "libboost$version-dev" && is_installed "libboost-context$version-dev"; then
    has_boost=yes
  fi
done

check_cmake() {
  local found
  found="$(cmake --version | sed -n '1s/[^0-9]*//p')"
  if [[ "$(printf '3.25\n%s\n' "$found" | sort -V | head -n 1)" != 3.25 ]]; then
    fail "cmake $found is too old, 3.25 is needed: use Debian 12 or Ubuntu 24.04, or \
'pip install cmake', and run again"
  fi
}

if [[ ${#missing[@]} -eq 0 && "$has_boost" == yes ]]; then
  check_cmake
  finish "all installed"
fi

as_root=()
if [[ "$(id -u)" -ne 0 ]]; then
  command -v sudo >/dev/null ||
    fail "not root, and no sudo. As root: apt-get install ${missing[*]} $(boost_packages "${boost_versions[0]}")"
  as_root=(sudo)
fi
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 \
    -o Acquire::Retries=2 "$@"
}

echo "Packages: installing ${missing[*]}"
# Where an installation was interrupted, nothing else goes on before it.
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive dpkg --configure -a ||
  fail "'dpkg --configure -a' failed, see above; once it works, run again"
apt update -o APT::Update::Error-Mode=any ||
  fail "the package servers cannot be reached ('apt-get update' failed, see above). Check network \
and proxy, then run again; what is missing: ${missing[*]}"

is_offered() {
  [[ -n "$(apt-cache show "$1" 2>/dev/null)" ]]
}

if [[ "$has_boost" == no ]]; then
  for version in "${boost_versions[@]}"; do
    if is_offered "libboost-context$version-dev"; then
      read -r -a found <<<"$(boost_packages "$version")"
      missing+=("${found[@]}")
      has_boost=yes
      break
    fi
  done
  [[ "$has_boost" == yes ]] ||
    fail "this release has no libboost of ${boost_versions[*]}; Boost 1.81 or newer is needed (Debian 12 \
and Ubuntu 24.04 have it)"
fi
for package in "${missing[@]}"; do
  is_offered "$package" ||
    fail "this release has no package $package; Debian 12 and Ubuntu 24.04 have all that is needed"
done
apt install -y --no-install-recommends "${missing[@]}" ||
  fail "'apt-get install' failed, see above; once it works, run again"
check_cmake
finish "installed"
