#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the wheel sluice_serve of a program, as auditwheel takes it: a package with the program, the
command `sluice`, and the licences of all that auditwheel will put beside it."""
import argparse
import base64
import hashlib
import pathlib
import stat
import subprocess
import sys
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from image_root import libraries_of, packages_of_files

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
NAME = "sluice_serve"

START = '''# SPDX-License-Identifier: Apache-2.0
"""Starts the program that this package holds; `python -m sluice_serve` is `sluice`."""
import os
import pathlib
import sys

PROGRAM = pathlib.Path(__file__).resolve().parent / "bin" / "sluice"


def main():
    os.execv(PROGRAM, ["sluice", *sys.argv[1:]])


if __name__ == "__main__":
    main()
'''

METADATA = """Metadata-Version: 2.1
Name: sluice-serve
Version: {version}
Summary: Server of language models on CPUs and NVIDIA GPUs
License: Apache-2.0
Requires-Python: >=3.8
Description-Content-Type: text/markdown

Sluice serves language models: `sluice serve MODEL`, and any client of OpenAI's API.
This package holds the program; `sluice --help` says what it does.
"""

WHEEL = """Wheel-Version: 1.0
Generator: sluice
Root-Is-Purelib: false
Tag: py3-none-linux_x86_64
"""

ENTRY_POINTS = """[console_scripts]
sluice = sluice_serve.__main__:main
"""


def licences_of(binary, xgrammar):
    """Name in the wheel -> file, for the program and every library that is linked to it."""
    files = {"sluice/LICENSE": REPOSITORY / "LICENSE"}
    for path in (xgrammar / "share/xgrammar").iterdir():
        files[f"xgrammar/{path.name}"] = path
    for package in packages_of_files(libraries_of(binary)):
        files[f"{package}/copyright"] = pathlib.Path(f"/usr/share/doc/{package}/copyright")
    return files


class Wheel:
    """A wheel being written; its last file is the record of all others."""

    def __init__(self, path, information):
        self.archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.information = information
        self.record = []

    def add(self, name, content, mode=0o644):
        entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        entry.external_attr = (stat.S_IFREG | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.archive.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(content)}")

    def close(self):
        name = f"{self.information}/RECORD"
        text = "\n".join([*self.record, f"{name},,"]) + "\n"
        self.archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), text)
        self.archive.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=pathlib.Path, required=True)
    parser.add_argument("--to", type=pathlib.Path, required=True, help="folder of the wheel")
    parser.add_argument("--xgrammar", type=pathlib.Path, required=True,
                        help="what deploy/install_xgrammar.sh prints")
    arguments = parser.parse_args()
    version = subprocess.run([arguments.binary, "version", "--short"], check=True,
                             capture_output=True, text=True).stdout.strip()
    information = f"{NAME}-{version}.dist-info"
    wheel = Wheel(arguments.to / f"{NAME}-{version}-py3-none-linux_x86_64.whl", information)
    wheel.add(f"{NAME}/__init__.py", b"# SPDX-License-Identifier: Apache-2.0\n")
    wheel.add(f"{NAME}/__main__.py", START.encode())
    wheel.add(f"{NAME}/bin/sluice", arguments.binary.read_bytes(), 0o755)
    for name, path in sorted(licences_of(arguments.binary, arguments.xgrammar).items()):
        wheel.add(f"{information}/licenses/{name}", path.read_bytes())
    for name, text in (("METADATA", METADATA.format(version=version)), ("WHEEL", WHEEL),
                       ("entry_points.txt", ENTRY_POINTS)):
        wheel.add(f"{information}/{name}", text.encode())
    wheel.close()


if __name__ == "__main__":
    main()
