#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `cmake --install` puts where: the tree is complete, completions and the manual page have
every command, flag and knob, bash completes them, and the unit is one that systemd takes.
usage: install_test.py BUILD_FOLDER"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(sys.argv.pop())
PROGRAM = BUILD / "sluice"
SHELLS = {"bash": "share/bash-completion/completions/sluice",
          "zsh": "share/zsh/vendor-completions/_sluice",
          "fish": "share/fish/vendor_completions.d/sluice.fish"}
MANUAL = "share/man/man1/sluice.1"
UNIT = "lib/systemd/system/sluice.service"
DOCUMENTS = {f"share/doc/sluice/{name}" for name in (
    "copyright", "xgrammar/LICENSE", "xgrammar/picojson.h", "xgrammar/repetitions.patch")}


def output_of(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, **options).stdout


def install(prefix, **environment):
    output_of("cmake", "--install", BUILD, "--strip", "--prefix", prefix,
              env={**os.environ, **environment})


def files_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def flags_in(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))


def commands():
    """The commands that --help lists."""
    listed = output_of(PROGRAM, "--help").split("Subcommands:")[1].split("\n\n")[0]
    return re.findall(r"^  ([a-z][a-z-]*(?: [a-z][a-z-]*)?)  ", listed, re.MULTILINE)


def own_flags(command):
    usage = output_of(PROGRAM, *command.split(), "--help")
    return set(re.findall(r"^ +(?:-\w,)?(--[a-z][a-z0-9-]*)", usage, re.MULTILINE))


def knobs():
    shown = output_of(PROGRAM, "config", env={"PATH": os.environ["PATH"], "SLUICE_API_KEY": "k",
                                              "SLUICE_HF_TOKEN": "t", "SLUICE_WORKER_SECRET": "s"})
    return re.findall(r"^(?:# )?([a-z][a-z0-9-]*):", shown, re.MULTILINE)


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.root = pathlib.Path(cls.folder.name) / "root"
        install("/usr", DESTDIR=str(cls.root))
        cls.texts = {name: (cls.root / "usr" / path).read_text()
                     for name, path in {**SHELLS, "manual": MANUAL}.items()}
        cls.texts["manual"] = re.sub(r"\\f[BIR]", " ", cls.texts["manual"].replace("\\-", "-"))
        cls.commands = commands()

    def test_the_tree_is_complete_under_usr(self):
        expected = {"bin/sluice", MANUAL, UNIT, *SHELLS.values()} | DOCUMENTS
        self.assertEqual(files_in(self.root), {f"usr/{name}" for name in expected} | {
            "etc/sluice/sluice.yaml"})
        self.assertIn("ExecStart=/usr/bin/sluice serve --config /etc/sluice/sluice.yaml",
                      (self.root / "usr" / UNIT).read_text())

    def test_another_prefix_has_all_of_it_within(self):
        prefix = pathlib.Path(self.folder.name) / "local"
        install(prefix)
        self.assertEqual(len(files_in(prefix)), len(files_in(self.root)))
        self.assertIn(f"ExecStart={prefix}/bin/sluice serve --config {prefix}/etc/sluice/sluice.yaml",
                      (prefix / UNIT).read_text())
        self.assertTrue((prefix / "share/zsh/site-functions/_sluice").exists())
        if shutil.which("systemd-analyze"):
            checked = subprocess.run(["systemd-analyze", "verify", "--man=no", prefix / UNIT],
                                     capture_output=True, text=True, timeout=60, check=False)
            self.assertNotIn("sluice.service", checked.stderr)
            self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_every_command_and_flag_is_in_every_text(self):
        self.assertGreater(len(self.commands), 15)
        for command in self.commands:
            flags = own_flags(command)
            for name, text in self.texts.items():
                self.assertIn(command.split()[-1], text, name)
                missing = {flag for flag in flags if name == "fish" and f"-l {flag[2:]} " not in text}
                if name != "fish":
                    missing = flags - flags_in(text)
                self.assertEqual(missing, set(), f"{command} in {name}")

    def test_every_knob_is_in_every_text(self):
        names = knobs()
        self.assertGreater(len(names), 90)
        for name in names:
            for shell in ("bash", "zsh"):
                self.assertIn(f"--{name}", flags_in(self.texts[shell]))
            self.assertIn(f"-l {name} ", self.texts["fish"])
            self.assertEqual(len(re.findall(rf"^ --{name} ", self.texts["manual"].split(
                ".SH KNOBS")[1], re.MULTILINE)), 1, name)

    def test_the_texts_are_well_formed(self):
        for shell, path in SHELLS.items():
            if shutil.which(shell):
                subprocess.run([shell, "-n", self.root / "usr" / path], check=True, timeout=60)
        if shutil.which("groff"):
            page = subprocess.run(["groff", "-man", "-ww", "-Tutf8", self.root / "usr" / MANUAL],
                                  capture_output=True, text=True, timeout=60, check=True)
            self.assertEqual(page.stderr, "")
            self.assertIn("--max-num-seqs", re.sub(r"\x1b\[\d*m|.\x08", "", page.stdout))

    def complete(self, line):
        """What bash offers behind `line`, whose last word is completed."""
        words = re.findall(r"=|[^\s=]+", line) + ([""] if line.endswith(" ") else [])
        script = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sluice; '
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        return output_of("bash", "-c", script, "bash", self.root / "usr" / SHELLS["bash"],
                         *words).split()

    def test_bash_completes(self):
        self.assertEqual(self.complete("sluice ser"), ["serve"])
        self.assertEqual(self.complete("sluice serve --max-num-s"), ["--max-num-seqs"])
        self.assertEqual(self.complete("sluice serve --isa avx"), ["avx2", "avx512"])
        self.assertEqual(self.complete("sluice serve --isa=am"), ["amx"])
        self.assertEqual(self.complete("sluice serve --isa="), ["auto", "scalar", "avx2", "avx512", "amx"])
        self.assertEqual(self.complete("sluice serve --port "), [])  # bash goes on with files
        self.assertEqual(self.complete("sluice bench lat"), ["latency"])
        self.assertIn("openai-chat", self.complete("sluice bench serve --backend "))
        self.assertNotIn("--isa", self.complete("sluice bench serve --"))
        self.assertEqual(self.complete("sluice completion "), ["bash", "zsh", "fish"])

    def test_the_units_configuration_is_one(self):
        shown = output_of(PROGRAM, "serve", "--config", self.root / "etc/sluice/sluice.yaml",
                          "--print-config")
        self.assertIn("port: 8000", shown)


if __name__ == "__main__":
    unittest.main()
