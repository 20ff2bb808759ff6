#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the Python of a virtual environment with the packages of a requirements file; it lies
# outside the repository and is made again when the file changes. Fails where it cannot be made.
# usage: python_venv.sh REQUIREMENTS
set -euo pipefail

requirements="$1"
venv="${XDG_CACHE_HOME:-$HOME/.cache}/sluice/venv-$(sha256sum "$requirements" | cut -c 1-12)"
if [[ ! -e "$venv/complete" ]]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip --disable-pip-version-check install -q -r "$requirements" >&2
  touch "$venv/complete"
fi
echo "$venv/bin/python"
