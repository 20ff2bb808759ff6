#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients of others, unmodified, each its main path: clients_test.py BINARY [CLIENT...].

Needs the network: each requirements file beside this one is installed into an environment of its
own, kept while the file is the same. The model says what scripts.py holds. Prints a table of client,
version and result; ends with 1 where one of them failed or could not be installed, with 77 (skipped)
where none could.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "server"))
from scripted_model import write_model  # noqa: E402
from scripts import scripts_for  # noqa: E402
from server_process import SKIPPED, Server  # noqa: E402

# Requirements file: clients that run in its environment.
CLIENTS = {
    "coding": ["claude-code", "claude-agent-sdk", "codex-cli"],
    "frameworks": [
        "openai", "anthropic", "openai-agents", "instructor", "litellm", "outlines", "magentic",
        "mirascope", "pydantic-ai-slim", "langchain-openai", "langchain-anthropic",
        "llama-index-llms-openai-like", "smolagents", "haystack-ai", "autogen-agentchat", "dspy",
        "llm"],
    "inspect": ["inspect-ai"],
    "harness": ["lm_eval"],
    "crewai": ["crewai"],
    "aider": ["aider-chat"],
    "retrieval": ["openai-embeddings", "cohere", "langchain-embeddings",
                  "llama-index-embeddings-openai-like", "huggingface_hub"],
    "langchain_cohere": ["langchain-cohere"],
}
VECTORS = HERE.parent / "golden/embeddings/bert-mean"  # the model of these two sets of clients
SECONDS = 300


def environment_of(name):
    """Its Python, or none where the packages cannot be had."""
    made = subprocess.run([HERE.parent / "python_venv.sh", HERE / f"requirements_{name}.txt"],
                          stdout=subprocess.PIPE, text=True, check=False)
    return made.stdout.strip() if made.returncode == 0 else None


def run_client(python, client, server, folder):
    """(version, what went wrong or nothing)."""
    environment = {**os.environ, "CLIENTS_HOME": str(folder / "home"), "DO_NOT_TRACK": "1",
                   "HOME": str(folder / "home"), "PYTHONPATH": str(HERE)}
    try:
        ran = subprocess.run(
            [python, HERE / "cases.py", client, f"http://127.0.0.1:{server.port}", folder / "work"],
            capture_output=True, text=True, timeout=SECONDS, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return "?", f"not done after {SECONDS} s"
    lines = ran.stdout.splitlines()
    versions = [line.split()[1] for line in lines if line.startswith("version ")]
    passed = ran.returncode == 0 and "passed" in lines
    return versions[0] if versions else "?", "" if passed else ran.stdout + ran.stderr


def start_server(binary, client, folder):
    if client in CLIENTS["retrieval"] + CLIENTS["langchain_cohere"]:
        return Server(binary, str(VECTORS), "--served-model-name", "scripted", "--kv-cache-dtype", "float32")
    write_model(folder / "scripted.gguf", scripts_for(str(folder / "work")))
    return Server(binary, str(folder / "scripted.gguf"), "--tool-call-parser", "hermes",
                  "--served-model-name", "scripted", "--kv-cache-memory", "268435456",
                  "--enable-tokenizer-info-endpoint")


def run_one(binary, python, client):
    """One row; the folder is in the script, so each client has a server of its own."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "home").mkdir()
        server = start_server(binary, client, folder)
        try:
            version, wrong = run_client(python, client, server, folder)
        finally:
            server.stop()
    print(f"{client:30}{version:12}{'FAILED' if wrong else 'passed':8}"
          f"{time.monotonic() - started:6.1f} s", flush=True)
    if wrong:
        print(wrong[-6000:], flush=True)
    return not wrong


def main(binary, *chosen):
    unknown = set(chosen) - {client for clients in CLIENTS.values() for client in clients}
    if unknown:
        sys.exit(f"no such client: {', '.join(sorted(unknown))}")
    failed, ran = [], False
    for name, clients in CLIENTS.items():
        wanted = [client for client in clients if not chosen or client in chosen]
        python = environment_of(name) if wanted else None
        if wanted and python is None:
            print(f"requirements_{name}.txt cannot be installed: {', '.join(wanted)}")
            failed += wanted
            continue
        ran = ran or bool(wanted)
        failed += [client for client in wanted if not run_one(binary, python, client)]
    if not ran:
        return SKIPPED
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
