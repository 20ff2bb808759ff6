#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `sluice` finds before it reads weights, how it says so, and how Ctrl-C ends it.

usage: start_test.py BINARY MODEL
"""
import fcntl
import json
import os
import pty
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
import urllib.request

BINARY, MODEL = map(os.path.abspath, sys.argv[1:])
PATIENCE_S = 60


def run(*words, env=None):
    done = subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=PATIENCE_S,
                          stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})})
    assert done.stderr.count("\n") <= 1 or done.returncode == 0, done
    return done.returncode, done.stdout, done.stderr


def check_a_port_in_use_is_found_first(folder):
    """Before the plan, and so before weights and cache."""
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        port = owner.getsockname()[1]
        code, out, error = run("serve", MODEL, "--host", "127.0.0.1", "--port", str(port))
        assert code == 1 and f"Port {port} of 127.0.0.1 is in use" in error and not out, (out, error)
        code, out, error = run("serve", MODEL, "--host", "127.0.0.1", "--port", "0",
                               "--grpc-port", str(port))
        assert code == 1 and "gRPC: " in error and "is in use" in error and not out, (out, error)
        code, _, error = run("serve", MODEL, "--host", "127.0.0.1", "--port", str(port), "--dry-run")
        assert code == 0, error  # a plan beside the server that runs


def check_dry_run_refuses_what_the_start_would(folder):
    broken = os.path.join(folder, "broken.jinja")
    with open(broken, "w") as file:
        file.write("{% if %}")
    for flags, part, codes in ((["--tool-call-parser", "nonsense"], "--tool-call-parser must be one of", {2}),
                               (["--reasoning-parser", "nonsense"], "--reasoning-parser must be one of", {2}),
                               (["--chat-template", broken], "chat template", {1, 2}),
                               (["--chat-template", "/nowhere.jinja"], "/nowhere.jinja", {1}),
                               (["--ssl-certfile", "/nowhere.pem", "--ssl-keyfile", "/nowhere.key"],
                                "/nowhere", {1, 2}),
                               (["--api-key-file", "/nowhere.keys"], "/nowhere.keys", {1, 2}),
                               (["--kv-transfer-config", "{"], "kv-transfer-config", {1, 2})):
        code, out, error = run("serve", MODEL, "--dry-run", *flags)
        assert code in codes and part in error and not out, (flags, code, out, error)
        started = run("serve", MODEL, "--host", "127.0.0.1", "--port", "0", *flags)
        assert started == (code, out, error), (flags, started)


def check_a_folder_names_the_models_in_it(folder):
    models = os.path.join(folder, "models")
    os.makedirs(os.path.join(models, "inner"))
    code, _, error = run("serve", models, "--dry-run")
    assert code == 2 and "there is none in it" in error, (code, error)
    shutil.copy(MODEL, os.path.join(models, "one.gguf"))
    with open(os.path.join(models, "inner", "config.json"), "w") as file:
        file.write("{}")
    for command in ("serve", "inspect", "chat", "bench"):
        code, _, error = run(command, models)
        assert code == 2 and f"{models}/one.gguf" in error and f"{models}/inner" in error, (code, error)


def strange_file(path, width):
    """A GGUF file of no known family, whose one matrix is a hole of width * 4096 floats."""
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()
    with open(path, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("general.architecture"))
        file.write(struct.pack("<I", 8) + text("glm4x") + text("blk.0.ssm_x.weight"))
        file.write(struct.pack("<IQQIQ", 2, 4096, width, 0, 0))
        file.truncate((file.tell() + 31) // 32 * 32 + width * 4096 * 4)


def strange_directory(path, width):
    os.mkdir(path)
    with open(os.path.join(path, "config.json"), "w") as file:
        json.dump({"model_type": "glm4x", "architectures": ["Glm4xForCausalLM"]}, file)
    tensor = {"dtype": "F32", "shape": [width, 4096], "data_offsets": [0, width * 4096 * 4]}
    header = json.dumps({"model.layers.0.mamba.x_proj.weight": tensor}).encode()
    with open(os.path.join(path, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(file.tell() + width * 4096 * 4)


def check_a_strange_family_is_named_without_its_weights(folder):
    """A start fails; what a file has can be shown all the same. 2 GiB of weights are not read."""
    for make, name in ((strange_file, "strange.gguf"), (strange_directory, "strange")):
        path = os.path.join(folder, name)
        make(path, 1 << 17)
        said = "architecture glm4x is not supported: it has state-space layers of Mamba-1; nearest: glm4"
        with tempfile.TemporaryFile("w+") as out:
            process = subprocess.Popen([BINARY, "inspect", path], stdout=out, stdin=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            text = out.read()
        assert process.returncode == 0 and said in text and "2147483648 bytes" in text, (status, text)
        assert usage.ru_maxrss < 500_000, usage.ru_maxrss  # KiB
        code, out, error = run("serve", path, "--dry-run")
        assert code == 1 and said in error and not out, (code, out, error)


def check_an_override_that_nothing_reads_is_refused(folder):
    for command in (["serve", MODEL, "--dry-run"], ["inspect", MODEL]):
        code, out, error = run(*command, "--hf-overrides", '{"rope_scalling": {"factor": 4}}')
        assert code == 1 and '"rope_scalling" is not supported' in error and not out, (code, out, error)


def check_wrong_use_is_always_two(folder):
    for words in (["serve", MODEL, "--max-model-len", "99999999", "--dry-run"],
                  ["bench", "serve", "--goodput", "ttft", "--num-prompts", "1"],
                  ["bench", "serve", "--percentile-metrics", "speed", "--num-prompts", "1"],
                  ["bench", "serve", "--metadata", "x", "--num-prompts", "1"],
                  ["bench", "serve", "--ramp-up-strategy", "linear", "--num-prompts", "1"],
                  ["health", "--url", "nonsense"],
                  ["serve", MODEL, "--model", "other"],
                  ["nonsense"]):
        code, _, error = run(*words)
        assert code == 2, (words, code, error)


def check_results_are_compared(folder):
    paths = []
    for name, rate in (("a", 10.0), ("b", 8.0)):
        paths.append(os.path.join(folder, name + ".json"))
        with open(paths[-1], "w") as file:
            json.dump({"model_id": "m", "request_throughput": rate, "mean_ttft_ms": 5.0}, file)
    code, out, error = run("bench", "compare", *paths)
    assert code == 0 and "-20.0 %" in out and "request_throughput" in out, (code, out, error)
    assert run("bench", "compare", *paths, "--threshold", "25")[0] == 0
    code, _, error = run("bench", "compare", *paths, "--threshold", "5")
    assert code == 1 and "request_throughput was 10.00 and is 8.00" in error, (code, error)
    code, _, error = run("bench", "compare", paths[0], MODEL)
    assert code == 1 and MODEL in error, (code, error)
    assert run("bench", "compare", paths[0])[0] == 2


def check_help_fits_the_terminal(folder):
    for columns in (80, 140):
        controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        process = subprocess.Popen([BINARY, "serve", "--help"], stdout=terminal, stdin=subprocess.DEVNULL)
        os.close(terminal)
        text = b""
        try:
            while part := os.read(controller, 65536):
                text += part
        except OSError:  # the other end is closed
            pass
        os.close(controller)
        assert process.wait(PATIENCE_S) == 0
        lines = text.decode().replace("\r", "").split("\n")
        long = [line for line in lines if len(line) > columns]
        # What is one word, as a list of choices, cannot be broken.
        assert all(len(line.split()) <= 2 for line in long), long
        assert max(map(len, lines)) > columns * 0.8, columns


def check_ctrl_c_ends_at_once(folder):
    process = subprocess.Popen([BINARY, "serve", MODEL, "--host", "127.0.0.1", "--port", "0",
                                "--drain-timeout-s", "60"], stdout=subprocess.PIPE, text=True,
                               stderr=subprocess.PIPE)
    line = ""
    while "serving" not in line:
        line = process.stdout.readline()
        assert line, "it ended"
    url = "http" + line.split(" on http")[1].split(" ")[0]
    body = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        answer.readline()
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        log = process.communicate(timeout=PATIENCE_S)[1]
    seconds = time.monotonic() - began
    assert seconds < 10, seconds
    assert "stopping" in log and "draining" not in log, log  # as it would for a minute


with tempfile.TemporaryDirectory() as place:
    for check in (check_a_port_in_use_is_found_first, check_dry_run_refuses_what_the_start_would,
                  check_a_folder_names_the_models_in_it, check_a_strange_family_is_named_without_its_weights,
                  check_an_override_that_nothing_reads_is_refused, check_wrong_use_is_always_two,
                  check_results_are_compared, check_help_fits_the_terminal, check_ctrl_c_ends_at_once):
        started = time.monotonic()
        check(place)
        print(f"ok {check.__name__} ({time.monotonic() - started:.1f} s)", flush=True)
