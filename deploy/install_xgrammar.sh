#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds XGrammar, the library behind structured output, as a static library, from its source
# distribution on PyPI with xgrammar/repetitions.patch, and prints where. Does nothing, and needs no
# network, when it is there. --beside: with a quarter of the processors, as a step of the build.
# --as-released: without the patch, for builds with SLUICE_XGRAMMAR_PATCH=OFF.
# SLUICE_XGRAMMAR_ROOT: where (~/.cache/sluice/xgrammar-VERSION[-as-released]). Needs what
# install_packages.sh installs.
set -euo pipefail

version="0.2.8"
sha256="8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/sluice"
jobs="$(nproc)"
kind=""
patch="$here/xgrammar/repetitions.patch"
for argument in "$@"; do
  case "$argument" in
    --beside) jobs=$((jobs < 8 ? 1 : jobs / 4)) ;;
    --as-released) kind="-as-released" patch=/dev/null ;;
    *)
      echo "usage: bash deploy/install_xgrammar.sh [--beside] [--as-released]" >&2
      exit 2
      ;;
  esac
done
root="${SLUICE_XGRAMMAR_ROOT:-$cache/xgrammar-$version$kind}"
# Changes with what is built and how.
recipe="$(cat "${BASH_SOURCE[0]}" "$here/xgrammar/CMakeLists.txt" "$patch" |
  sha256sum | cut -d ' ' -f 1)"

leave_if_there() {
  if [[ -f "$root/recipe" && "$(cat "$root/recipe")" == "$recipe" ]]; then
    echo "$root"
    exit 0
  fi
}

leave_if_there
# One at a time: several builds may want it, and what an interrupted one has left is taken away.
mkdir -p "$(dirname "$root")"
exec 9>"$root.lock"
flock 9
leave_if_there

# The python3 found first may come without pip (its own build, a virtual environment).
python=""
for candidate in python3 /usr/bin/python3; do
  if "$candidate" -m pip --version >/dev/null 2>&1; then
    python="$candidate"
    break
  fi
done
if [[ -z "$python" ]]; then
  echo "install_xgrammar.sh: no python3 with pip; run deploy/install_packages.sh" >&2
  exit 1
fi

work="$root.build"
rm -rf "$work"
mkdir "$work"
trap 'rm -rf "$work"' EXIT
echo "Building XGrammar $version (once)" >&2
# pip checks the hash before it looks into the file.
echo "xgrammar==$version --hash=sha256:$sha256" >"$work/requirements.txt"
if ! "$python" -m pip --disable-pip-version-check download -q --no-deps --no-binary xgrammar \
  --require-hashes --dest "$work" -r "$work/requirements.txt" >&2; then
  echo "install_xgrammar.sh: xgrammar $version cannot be downloaded, see above" >&2
  exit 3
fi
tar -xzf "$work/xgrammar-$version.tar.gz" -C "$work"
[[ -n "$kind" ]] || patch -s -p1 -d "$work/xgrammar-$version" <"$patch"
generator=()
if command -v ninja >/dev/null; then generator=(-G Ninja); fi
launcher=()
if command -v ccache >/dev/null; then
  # The folder's name differs from machine to machine.
  launcher=("-DCMAKE_CXX_COMPILER_LAUNCHER=cmake;-E;env;CCACHE_BASEDIR=$work;CCACHE_NOHASHDIR=1;ccache")
fi
cmake -S "$here/xgrammar" -B "$work/build" "${generator[@]}" "${launcher[@]}" \
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$work/root" -DXGRAMMAR_PATCH="$patch" \
  -DXGRAMMAR_SOURCE="$work/xgrammar-$version" >"$work/log" 2>&1 &&
  cmake --build "$work/build" --parallel "$jobs" >>"$work/log" 2>&1 &&
  cmake --install "$work/build" >>"$work/log" 2>&1 ||
  {
    cat "$work/log" >&2
    echo "install_xgrammar.sh: XGrammar $version cannot be built, see above" >&2
    exit 1
  }
echo "$recipe" >"$work/root/recipe"
rm -rf "$root"
mv "$work/root" "$root"
echo "$root"
