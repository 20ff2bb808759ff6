#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages for operators do what they say: their commands run, what they name is there.

usage: guides_test.py BINARY MODEL.gguf

Blocks of `sh` run in a folder of the section's own, which has what FILES names, and in which $PID is the
server that was started last. A block with one command that serves is a server until its section ends; it
has to end in order then. Needs curl and openssl, and is skipped without.
"""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import guides

sys.path.insert(0, str(guides.REPOSITORY / "tests/server"))

from mock_hub import REPO, Hub  # noqa: E402
from server_process import SKIPPED, wait_until  # noqa: E402

FILES = ("model.gguf", "draft.gguf")
# An address of 127.0.0.0/8 that is this process's own, so that ports are as the pages have them.
ADDRESS = f"127.{64 + os.getpid() % 128}.{os.getpid() // 128 % 250}.254"
PLACES = {"127.0.0.1": ADDRESS, "org/model": REPO}
SERVES = re.compile(r"^(sluice serve|sluice router|(sluice )?vllm serve) (?!.*--dry-run)")
# The line of a server that is ready, as text or as JSON; its URL.
READY = re.compile(r'^(?:(?:serving|routing) |{.*"event":"(?:serving|routing)").*?(https?://[^\s"]+)', re.M)
METRIC = re.compile(r"^((?:vllm:|sluice[:_]|llamacpp:|http_|grpc_|process_)[a-z_]+)(\{.*\})?$")
EVENT = re.compile(r"^[a-z]+(_[a-z]+)+$")
# Cells of these tables hold what the program says or serves.
SAID = {"Size": 0, "Symptoms": 0, "Models by name": 0}
# Requests that are refused with the words of a symptom's row.
REFUSED = {"This model's maximum context length is ": {"prompt": "a", "max_tokens": 1_000_000}}


class Server:
    """In a process group of its own, which a process that takes its place is in as well."""

    def __init__(self, command, environment, folder, number):
        self.command = command
        self.log_path = folder / f"server-{number}.log"
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", "exec " + command], env=environment, cwd=folder, stdout=log,
                stderr=log, start_new_session=True)
        wait_until(f"{command}: {self.log_path}", self.is_ready, 60)
        self.url = READY.findall(self.log())[-1]

    def is_ready(self):
        assert self.process.poll() is None, f"{self.command}: {self.log()}"
        return READY.search(self.log())

    def log(self):
        return self.log_path.read_text()

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        code = self.process.wait(timeout=60)
        assert code == 0, f"{self.command} ends with {code}: {self.log()}"

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def refusal(url, body):
    """(status, message) of an answer that is an error."""
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]["message"]


class Runner:
    def __init__(self, binary, model):
        self.binary, self.model = binary.resolve(), model.resolve()
        self.metrics, self.num_commands = set(), 0
        self.hub = Hub({"tiny.gguf": model.read_bytes()}, large=("tiny.gguf",))

    def run_page(self, page):
        for section in guides.sections(page):
            blocks = [block for block in section.blocks if block.language == "sh"]
            if not blocks:
                continue
            started = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="guides_test") as folder:
                self.run_section(page, blocks, pathlib.Path(folder))
            print(f"ok {page.name}: {section.title} ({time.monotonic() - started:.1f} s)", flush=True)

    def environment(self, folder):
        programs = folder / "bin"
        programs.mkdir()
        for name in ("sluice", "vllm"):
            (programs / name).symlink_to(self.binary)
        for name in FILES:
            shutil.copy(self.model, folder / name)
        return {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder),
                "SLUICE_HOST": ADDRESS, "SLUICE_THREADS": "1", "HF_ENDPOINT": self.hub.url,
                "NO_PROXY": "*", "PID": ""}

    def run_section(self, page, blocks, folder):
        environment, servers = self.environment(folder), []
        try:
            for block in blocks:
                for command in block.commands:
                    self.num_commands += 1
                    for name, place in PLACES.items():
                        command = command.replace(name, place)
                    if SERVES.match(command):
                        servers.append(Server(command, environment, folder, len(servers)))
                        environment["PID"] = str(servers[-1].process.pid)
                    else:
                        self.run_command(page, command, environment, folder)
            for server in servers:
                self.scrape(server)
            for server in reversed(servers):
                server.stop()
        finally:
            for server in servers:
                server.kill()

    def check_refusals(self, page):
        """What a page says of requests that get 400 is what their clients read."""
        rows = [row for section in guides.sections(page) if section.title == "Symptoms"
                for table in section.tables() for row in table if row[0].startswith("400 ")]
        phrases = {guides.CODE.search(row[0])[1] for row in rows}
        assert phrases == set(REFUSED), f"{page.name}: {phrases}"
        with tempfile.TemporaryDirectory(prefix="guides_test") as name:
            folder = pathlib.Path(name)
            server = Server("sluice serve model.gguf --port 8000", self.environment(folder), folder, 0)
            try:
                for phrase, body in REFUSED.items():
                    status, text = refusal(server.url, body)
                    assert status == 400 and phrase in text, f"{page.name}: {phrase}: {status} {text}"
                server.stop()
            finally:
                server.kill()

    def run_command(self, page, command, environment, folder):
        done = subprocess.run(["bash", "-o", "pipefail", "-c", command], env=environment, cwd=folder,
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (
            f"{page.name}: {command}\nends with {done.returncode}: {done.stdout[-500:]}{done.stderr[-2000:]}")

    def scrape(self, server):
        with contextlib.suppress(urllib.error.URLError):  # TLS
            text = urllib.request.urlopen(server.url + "/metrics", timeout=30).read().decode()
            self.metrics |= set(re.findall(r"^# TYPE (\S+)", text, re.M))


class Program:
    """What the binary and its sources have."""

    def __init__(self, binary, metrics):
        self.binary, self.metrics = binary, metrics
        self.commands = re.findall(r"^  ([a-z][a-z -]*?)  ", self.help(), re.M)
        self.flags = {flag for command in self.commands for flag in re.findall(
            r"(?<![\w-])--[a-z][\w-]*", self.help(*command.split()))}
        self.sources = self.strings("server", "engine", "scheduler", "kvcache")

    def help(self, *command):
        return subprocess.run([self.binary, *command, "--help"], capture_output=True, text=True,
                              check=True).stdout

    def strings(self, *rooms):
        """Literals of the sources, with those joined that stand side by side."""
        literals = set()
        for room in rooms:
            for path in (guides.REPOSITORY / room).rglob("*.cpp"):
                for found in re.findall(r'"(?:[^"\\\n]|\\.)*"(?:\s+"(?:[^"\\\n]|\\.)*")*', path.read_text()):
                    parts = re.findall(r'"((?:[^"\\\n]|\\.)*)"', found)
                    literals.add("".join(parts).replace('\\"', '"'))
        return literals

    def says(self, text):
        return any(text in literal for literal in self.sources)

    def lacks(self, word):
        """Why a word of inline code is wrong; empty: it is right, or nothing that is looked up."""
        metric = METRIC.match(word)
        if metric:
            names = {metric[1], metric[1] + "_total"}
            return "" if names & self.metrics else "no such metric"
        flags = re.findall(r"(?<![\w-])--[a-z][\w-]*", word)
        missing = [flag for flag in flags if flag not in self.flags]
        if missing:
            return f"no such flag: {missing}"
        variable = re.match(r"^SLUICE_([A-Z_]+)$", word)
        if variable and f"--{variable[1].lower().replace('_', '-')}" not in self.flags:
            return "no such variable"
        if word.startswith("sluice ") and not any(
                f"{word} ".startswith(f"sluice {command} ") for command in [*self.commands, "vllm"]):
            return "no such command"
        return ""


def words(page):
    """(section, word, what its row says of it) of inline code; flags of others are flag_maps_test.py's."""
    for section in guides.sections(page):
        if section.title == "Flags":
            continue
        others = section.title in ("The API", "Metrics")
        for table in section.tables() if others else []:
            for row in table:
                yield from ((section.title, word, row[1]) for word in guides.CODE.findall(row[0]))
        text = re.sub(r"^\|[^|]*", "|", section.text, flags=re.M) if others else section.text
        yield from ((section.title, word, "") for word in guides.CODE.findall(text))


def page_fault(word, row, pages_of_server):
    if not re.match(r"^/[a-z_/.0-9]+$", word):
        return ""
    is_there = word in pages_of_server
    if row.startswith("not there"):
        return "that page is there" if is_there else ""
    return "" if is_there or row and not row.startswith("the same") else "no such page"


def unsaid(program, page):
    """What the tables of SAID claim to be the program's words, and is not."""
    for section in guides.sections(page):
        column = SAID.get(section.title)
        for table in section.tables() if column is not None else []:
            for word in [word for row in table for word in guides.CODE.findall(row[column])]:
                if METRIC.match(word) or word.startswith(("--", "/")):
                    continue  # looked up as what they are
                if not (word in program.sources if EVENT.match(word) else program.says(word)):
                    yield f"{page.name}, {section.title}: nothing says `{word}`"


def check_words(program, page, pages_of_server):
    failures = list(unsaid(program, page))
    for title, word, row in words(page):
        if METRIC.match(word) and row.startswith("not there"):
            reason = "" if program.lacks(word) else "that metric is there"
        else:
            reason = program.lacks(word) or page_fault(word, row, pages_of_server)
        if reason:
            failures.append(f"{page.name}, {title}: `{word}`: {reason}")
    assert not failures, "\n".join(failures)


def check_console(page):
    """Paths of the repository in what cannot run here."""
    for section in guides.sections(page):
        for block in section.blocks:
            for command in block.commands if block.language == "console" else []:
                assert command.startswith("$ "), f"{page.name}: {command}"
                for path in re.findall(r"\bdeploy/[\w./-]+", command):
                    assert (guides.REPOSITORY / path).exists(), f"{page.name}: {command}: no {path}"


def routes():
    text = (guides.REPOSITORY / "server/api/routes.cpp").read_text()
    return set(re.findall(r'Route\{\s*"\w+",\s*"([^"]+)"', text))


def main():
    binary, model = map(pathlib.Path, sys.argv[1:3])
    missing = [tool for tool in ("curl", "openssl") if shutil.which(tool) is None]
    if missing:
        print(f"skipped: no {missing}")
        sys.exit(SKIPPED)
    runner = Runner(binary, model)
    pages = [page for page in guides.PAGES if page.exists()]
    for page in pages:
        runner.run_page(page)
    runner.check_refusals(guides.DEPLOY / "operating.md")
    runner.hub.close()
    program = Program(binary.resolve(), runner.metrics)
    for page in pages:
        check_words(program, page, routes())
        check_console(page)
    print(f"{runner.num_commands} commands ran, {len(runner.metrics)} metrics were seen")


if __name__ == "__main__":
    main()
