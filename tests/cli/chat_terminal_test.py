#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`sluice chat` at a pseudo-terminal, and with its input from a pipe.

usage: chat_terminal_test.py BINARY MODEL
"""
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time

BINARY, MODEL = map(os.path.abspath, sys.argv[1:])

FLAGS = [BINARY, "chat", MODEL, "--log-level", "error"]
PATIENCE_S = 60


class Terminal:
    """The program at a terminal of its own; what it writes is kept in `text`."""

    def __init__(self, *flags, folder):
        self.pid, self.end = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.environ.update(TERM="xterm", LC_ALL="C.UTF-8")
            os.execv(BINARY, FLAGS + list(flags))
        self.text = ""
        self.seen = 0

    def read(self, seconds):
        if not select.select([self.end], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.end, 65536)
        except OSError:  # the other end is closed
            return False
        self.text += data.decode(errors="replace")
        return bool(data)

    def expect(self, pattern):
        """What came up to the next match, which is behind what was matched before."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            match = re.compile(pattern, re.S).search(self.text, self.seen)
            if match:
                before = self.text[self.seen:match.end()]
                self.seen = match.end()
                return before
            assert time.monotonic() < deadline, (pattern, self.text[self.seen:])
            assert self.read(0.2), (pattern, self.text[self.seen:])

    def type(self, keys):
        os.write(self.end, keys.encode())

    def ask(self, line):
        self.type(line + "\r")

    def close(self):
        deadline = time.monotonic() + PATIENCE_S
        while self.read(0.2):
            assert time.monotonic() < deadline, self.text
        os.close(self.end)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def check_an_answer_and_its_figures(folder):
    terminal = Terminal("--max-tokens", "8", folder=folder)
    terminal.expect(r"/help lists the commands.*> ")
    terminal.ask("Hello")
    terminal.expect(r"\(8 tokens, the first after [\d.]+ s, [\d.]+ tokens/s, cut at the most tokens\)")
    terminal.expect("> ")
    terminal.ask("/help")
    terminal.expect(r"/regen.*> ")
    terminal.ask("/set")
    terminal.expect(r"temperature 0\.7, top_p 0\.95, max_tokens 8\r\n.*> ")
    terminal.ask("/set max_tokens 3")
    terminal.expect("> ")
    terminal.ask("/set temperature 9")
    terminal.expect(r"\(temperature must be in \[0, 2\].*\).*> ")
    terminal.ask("/wrong")
    terminal.expect(r"\(there is no command /wrong; /help lists them\).*> ")
    terminal.ask("/regen")
    terminal.expect(r"\(3 tokens.*> ")
    terminal.ask("/system Be brief.")
    terminal.expect("> ")
    terminal.ask("/save talk.json")
    terminal.expect("> ")
    terminal.ask("/quit")
    assert terminal.close() == 0
    with open(os.path.join(folder, "talk.json")) as file:
        messages = json.load(file)
    assert [m["role"] for m in messages] == ["system", "user", "assistant"], messages
    assert messages[0]["content"] == "Be brief." and messages[1]["content"] == "Hello"


def check_keys(folder):
    """Editing, the lines before, characters of several bytes, lines that go on."""
    terminal = Terminal("--max-tokens", "1", folder=folder)
    terminal.expect("> ")
    terminal.ask("secand\x1b[D\x1b[D\x7fo")  # left, left, backspace, o: "second"
    terminal.expect(r"\(1 tokens.*> ")
    terminal.ask("Köln ¿")
    terminal.expect(r"\(1 tokens.*> ")
    terminal.type("\x1b[A\x1b[A\r")  # up, up
    terminal.expect(r"\(1 tokens.*> ")
    terminal.ask("one\\")
    terminal.ask("two")
    terminal.expect(r"\(1 tokens.*> ")
    terminal.type("dropped\x03")
    terminal.expect(r"\^C.*> ")
    terminal.ask("/save keys.json")
    terminal.expect("> ")
    terminal.ask("/save keys.json")  # its own file again
    terminal.expect("> ")
    terminal.ask("/save talk.json")
    terminal.expect(r"\(talk.json is there already\).*> ")
    terminal.type("\x04")
    assert terminal.close() == 0
    with open(os.path.join(folder, "keys.json")) as file:
        asked = [m["content"] for m in json.load(file) if m["role"] == "user"]
    assert asked == ["second", "Köln ¿", "second", "one\ntwo"], asked


def check_pastes_and_blocks(folder):
    """What is pasted is one message, and so is what stands between marks of three quotes."""
    terminal = Terminal("--max-tokens", "1", folder=folder)
    terminal.expect("> ")
    terminal.type("see: \x1b[200~first\r\tsecond «ü»\n\n/help\r\x1b[201~")
    terminal.expect("/help")
    assert "tokens" not in terminal.text, "a line of it was sent"
    terminal.ask(" end")
    terminal.expect(r"\(1 tokens.*> ")
    terminal.ask('"""one')
    terminal.ask("/quit")
    terminal.ask('three"""')
    terminal.expect(r"\(1 tokens.*> ")
    terminal.ask('"""')
    terminal.ask("alone")
    terminal.ask('"""')
    terminal.expect(r"\(1 tokens.*> ")
    terminal.ask('"""dropped')
    terminal.type("\x03")
    terminal.expect(r"\^C.*> ")
    terminal.type("\x1b[200~half a paste")
    time.sleep(0.3)
    terminal.type("\x03")  # the terminal makes it a signal in a paste, too
    terminal.expect(r"\^C.*> ")
    terminal.ask("/save pasted.json")
    terminal.expect("> ")
    terminal.ask("/quit")
    assert terminal.close() == 0
    with open(os.path.join(folder, "pasted.json")) as file:
        asked = [m["content"] for m in json.load(file) if m["role"] == "user"]
    assert asked == ["see: first\n\tsecond «ü»\n\n/help end", "one\n/quit\nthree", "alone"], asked
    assert "\x1b[?2004h" in terminal.text and "\x1b[?2004l" in terminal.text


def check_interrupt_ends_the_answer_only(folder):
    terminal = Terminal("--ignore-eos", folder=folder)
    terminal.expect("> ")
    for _ in range(20):  # a whole answer takes half a second: on a busy machine the key comes late
        terminal.ask("Talk")
        terminal.expect(r"Talk\r\n.")  # the echo, and something of the answer
        terminal.type("\x03")
        figures = terminal.expect(r"\(\d+ tokens[^)]*\)")
        if "stopped" in figures:
            break
        terminal.expect(r"\^C.*> ")
        terminal.ask("/clear")
        terminal.expect("> ")
    else:
        raise AssertionError("no answer was stopped")
    terminal.expect("> ")
    assert os.waitpid(terminal.pid, os.WNOHANG) == (0, 0)
    terminal.ask("/set max_tokens 2")
    terminal.expect("> ")
    terminal.ask("/regen")
    terminal.expect(r"\(2 tokens.*> ")
    os.kill(terminal.pid, signal.SIGINT)  # not by a key
    terminal.expect(r"\^C.*> ")
    terminal.ask("/quit")
    assert terminal.close() == 0


def check_pipes(folder):
    """No prompt, no figures, no codes for colours; the first error ends it."""
    def run(text, *flags):
        return subprocess.run([*FLAGS, *flags], input=text, capture_output=True, text=True,
                              cwd=folder, timeout=PATIENCE_S)

    done = run("Hello\n/save pipe.json\n", "--max-tokens", "4", "--temperature", "0")
    assert done.returncode == 0, done
    assert "\033" not in done.stdout and "tokens" not in done.stdout and "> " not in done.stdout
    with open(os.path.join(folder, "pipe.json")) as file:
        assert json.load(file)[1]["content"] == done.stdout.rstrip("\n")
    # Another seed: another answer to the same question.
    done = run("Hello\n/save a.json\n/regen\n/save b.json\n", "--max-tokens", "8")
    answers = [json.load(open(os.path.join(folder, name)))[1]["content"] for name in ("a.json", "b.json")]
    assert answers[0] != answers[1], answers
    done = run("/set heat 1\nHello\n")
    assert done.returncode == 1 and "no parameter heat" in done.stderr and not done.stdout, done


with tempfile.TemporaryDirectory() as place:
    for check in (check_an_answer_and_its_figures, check_keys, check_pastes_and_blocks, check_interrupt_ends_the_answer_only,
                  check_pipes):
        began = time.monotonic()
        check(place)
        print(f"ok {check.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
