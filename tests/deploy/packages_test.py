#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Debian package and the Python wheel of a built program, each installed where nothing of ours is
and asked a chat: the package by apt in a root folder that debootstrap makes, the wheel in a virtual
environment, and its program in that folder while it has none of the libraries yet.
usage: packages_test.py BUILD_FOLDER MODEL.gguf"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests/server"))
from server_process import SKIPPED, Server

BUILD, MODEL = map(pathlib.Path, sys.argv[1:3])
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "sluice"
# Every Linux has these; auditwheel leaves them where they are.
OF_THE_SYSTEM = re.compile(r"^(linux-vdso|ld-linux-x86-64|lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\+\+|z))\.so")


def run(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, text=True,
                          stdout=subprocess.PIPE, timeout=900, **options).stdout


def skip(why):
    print(f"packages_test.py: skipped: {why}")
    sys.exit(SKIPPED)


def codename():
    return re.search(r"^VERSION_CODENAME=(\w+)$", pathlib.Path("/etc/os-release").read_text(),
                     re.MULTILINE).group(1)


def bare_system():
    """A folder with a distribution's smallest system, of the release that this machine has."""
    folder = CACHE / f"debootstrap-{codename()}"
    if (folder / "complete").exists():
        return folder
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        skip("needs root and apt, for a root folder of its own")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        if shutil.which("debootstrap") is None:
            run("apt-get", "-q", "install", "-y", "--no-install-recommends", "debootstrap")
        run("debootstrap", "--variant=minbase", codename(), folder)
    except subprocess.CalledProcessError:
        skip("debootstrap cannot make a root folder (no network?)")
    (folder / "complete").touch()
    return folder


class Root:
    """A copy of the bare system, in which programs run with a /proc of their own."""

    def __init__(self, folder):
        self.path = pathlib.Path(folder) / "root"
        run("cp", "-a", bare_system(), self.path)
        shutil.copy("/etc/resolv.conf", self.path / "etc/resolv.conf")
        shutil.copy(MODEL, self.path / "model.gguf")

    def wrapper(self, program):
        """A script on this machine that runs a program in there."""
        script = self.path.parent / "inside.sh"
        script.write_text(f"#!/bin/sh\nexport HOME=/root\nexec unshare --mount sh -c 'mount -t proc proc "
                          f"{self.path}/proc && exec chroot {self.path} \"$@\"' sh {program} \"$@\"\n")
        script.chmod(0o755)
        return script

    def run(self, program, *arguments):
        return run(self.wrapper(program), *arguments)

    def apt_get(self, *arguments):
        return self.run("/usr/bin/env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q",
                        "-o", "Acquire::Retries=2", *arguments)


def answers_a_chat(program, model):
    server = Server(str(program), str(model))
    try:
        connection, response = server.post(
            {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8},
            "/v1/chat/completions")
        body = response.read()
        connection.close()
        return response.status == 200 and b'"completion_tokens":8' in body.replace(b" ", b"")
    finally:
        server.process.terminate()
        server.process.wait(60)


class Packages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_the_debian_package(self):
        run("cpack", "-G", "DEB", "--config", BUILD / "CPackConfig.cmake", "-B", self.folder, cwd=BUILD)
        (package,) = self.folder.glob("*.deb")
        fields = run("dpkg-deb", "--info", package)
        print(fields)
        self.assertRegex(fields, r"Depends: .*libc6 .*libgrpc\+\+")
        root = Root(self.folder)
        shutil.copy(package, root.path / "sluice.deb")
        root.apt_get("update")
        root.apt_get("install", "-y", "--no-install-recommends", "/sluice.deb", "man-db", "groff-base")
        self.assertEqual(root.run("/usr/bin/dpkg", "--verify", "sluice-serve"), "")
        self.assertRegex(root.run("/usr/bin/sluice", "--version"), r"^sluice \d")
        self.assertTrue(answers_a_chat(root.wrapper("/usr/bin/sluice"), "/model.gguf"))
        page = root.run("/usr/bin/man", "-P", "cat", "sluice")
        self.assertIn("--max-num-seqs", re.sub(r".\x08", "", page))
        # What the operator has written is kept, and goes with the package when it is purged.
        configuration = root.path / "etc/sluice/sluice.yaml"
        configuration.write_text("model: mine\n")
        root.apt_get("install", "-y", "--reinstall", "/sluice.deb")
        self.assertEqual(configuration.read_text(), "model: mine\n")
        root.apt_get("purge", "-y", "sluice-serve")
        self.assertFalse(configuration.exists() or (root.path / "usr/bin/sluice").exists())

    def test_the_wheel(self):
        wheel = pathlib.Path(run("bash", REPOSITORY / "deploy/wheel.sh", "--binary", BUILD / "sluice",
                                 "--to", self.folder, cwd=REPOSITORY).strip().splitlines()[-1])
        print(f"{wheel.name}: {wheel.stat().st_size} bytes")
        self.assertRegex(wheel.name, r"^sluice_serve-[\d.]+-py3-none-manylinux_2_\d+_x86_64\.whl$")
        python = self.folder / "venv/bin/python"
        run(sys.executable, "-m", "venv", self.folder / "venv")
        run(python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", wheel)
        command = self.folder / "venv/bin/sluice"
        self.assertRegex(run(command, "--version"), r"^sluice \d")
        self.assertTrue(answers_a_chat(command, MODEL))
        self.assertEqual(run(python, "-m", "sluice_serve", "version", "--short"),
                         run(BUILD / "sluice", "version", "--short"))
        (program,) = (self.folder / "venv").rglob("sluice_serve/bin/sluice")
        outside = [line.split()[0] for line in run("ldd", program).splitlines()
                   if str(self.folder) not in line]
        foreign = [pathlib.Path(name).name for name in outside
                   if not OF_THE_SYSTEM.match(pathlib.Path(name).name)]
        self.assertEqual(foreign, [])
        root = Root(self.folder)
        zipfile.ZipFile(wheel).extractall(root.path / "wheel")
        inside = "/wheel/sluice_serve/bin/sluice"
        (root.path / inside[1:]).chmod(0o755)
        self.assertTrue(answers_a_chat(root.wrapper(inside), "/model.gguf"))


if __name__ == "__main__":
    bare_system()
    del sys.argv[1:]
    unittest.main(verbosity=2)
