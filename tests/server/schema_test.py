#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests made from /openapi.json by schemathesis: no 5xx, no answer that the document denies.

usage: schema_test.py BINARY MODEL [--seconds 20]

Runs where SLUICE_TEST_PYTHON names an interpreter with the `schemathesis` package. Seeded, ten minutes
long under SLUICE_FULL. Also lets promtool check the metrics, where there is one.
"""
import argparse
import os
import subprocess
import sys
import tempfile

import promtool
from server_process import Server, run_checks

CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance",
          "response_headers_conformance", "response_schema_conformance")


def schemathesis_python():
    python = os.environ.get("SLUICE_TEST_PYTHON")
    found = python and subprocess.run([python, "-c", "import schemathesis"], check=False,
                                      stderr=subprocess.DEVNULL).returncode == 0
    if not found:
        print("   skipped: SLUICE_TEST_PYTHON has no schemathesis")
    return python if found else None


def check_schema(server, seconds):
    python = schemathesis_python()
    if not python:
        return
    with tempfile.TemporaryDirectory() as folder:  # schemathesis keeps what it finds where it runs
        result = subprocess.run(
            [python, "-m", "schemathesis.cli", "run",
             f"http://127.0.0.1:{server.port}/openapi.json", "--max-time", str(seconds),
             "--checks", ",".join(CHECKS), "--continue-on-failure", "--no-shrink", "--no-color",
             "--warnings", "off", "--seed", "20261121"],
            check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=seconds * 3 + 120, cwd=folder)
    assert result.returncode == 0, result.stdout[-8000:]
    generated = [line for line in result.stdout.splitlines() if " generated, " in line]
    assert generated and int(generated[0].split()[0]) > 20, result.stdout[-8000:]
    print("  " + generated[0])


# Random requests seldom stream.
STREAMS = """
import sys
import schemathesis
schema = schemathesis.openapi.from_url(sys.argv[1] + "/openapi.json")
messages = [{"role": "user", "content": "x"}]
for path, prompt in (("/v1/completions", {"prompt": "x"}),
                     ("/v1/chat/completions", {"messages": messages, "max_tokens": 4}),
                     ("/v1/responses", {"input": "x", "max_output_tokens": 4}),
                     ("/v1/messages", {"messages": messages, "max_tokens": 4})):
    body = {**prompt, "stream": True, "stream_options": {"include_usage": True}}
    case = schema[path]["POST"].Case(body=body, media_type="application/json")
    response = case.call(base_url=sys.argv[1])
    assert response.status_code == 200 and response.text.count("data: ") > 3, response.text
    case.validate_response(response)
"""


def check_streams(server):
    python = schemathesis_python()
    if not python:
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-c", STREAMS, f"http://127.0.0.1:{server.port}"], check=True,
                       cwd=folder)


def check_metrics(server):
    if not promtool.is_there():
        print("   skipped: no promtool")
        return
    complaints = promtool.complaints(server.get("/metrics"))
    assert not complaints, complaints


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--seconds", type=int, default=600 if os.environ.get("SLUICE_FULL") else 20)
    args = parser.parse_args()
    server = Server(args.binary, args.model)
    run_checks(server, (("metrics", lambda: check_metrics(server)),
                        ("streams", lambda: check_streams(server)),
                        ("schema", lambda: check_schema(server, args.seconds)),
                        ("metrics afterwards", lambda: check_metrics(server))))


if __name__ == "__main__":
    sys.exit(main())
