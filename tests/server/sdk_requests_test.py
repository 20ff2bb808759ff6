#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What becomes of each field that the clients' types know: sdk_requests_test.py BINARY MODEL.

The table sdk_requests.txt names each field and each value of a closed set with a class; here the
table is held against the types, and the classes against a running server. Runs where
SLUICE_TEST_PYTHON has the packages `openai` and `anthropic`.
"""
import json
import pathlib
import sys

from server_process import Server, needs, run_checks

needs("openai", "anthropic")
from sdk_requests import APIS, KINDS, fields_of  # noqa: E402

TABLE = pathlib.Path(__file__).with_name("sdk_requests.txt")
HEADER = "x-sluice-ignored-arguments"
# The same answer each time.
SHORT = {"chat": {"max_tokens": 4, "temperature": 0},
         "completions": {"max_tokens": 4, "temperature": 0},
         "responses": {"max_output_tokens": 4, "temperature": 0},
         "messages": {"max_tokens": 4, "temperature": 0}}


def rows():
    """(API, field, class, value, what it needs besides, words) of each line."""
    for line in TABLE.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        line, _, words = line.partition(" -> ")
        line, _, more = line.partition(" + ")
        api, field, kind, value = (line.split(" ", 3) + [""])[:4]
        yield api, field, kind, value, json.loads(more or "{}"), words


def check_table():
    named = [f"{api} {field}" for api, field, *_ in rows()]
    known = [f"{api} {field}" for api in APIS for field in fields_of(api)]
    assert len(set(named)) == len(named), "a field is named twice"
    assert not set(known) - set(named), f"without a class: {sorted(set(known) - set(named))}"
    assert not set(named) - set(known), f"the types know no {sorted(set(named) - set(known))}"


def answer(server, path, body):
    connection, got = server.post(body, path)
    text = got.read().decode()
    connection.close()
    return got.status, got.getheader(HEADER) or "", text


def said(text):
    """What an answer says, without its names and times."""
    value = json.loads(text)
    if "output" in value:
        return [part["text"] for item in value["output"] for part in item["content"]]
    return [value.get(name) for name in ("choices", "content", "input_tokens")]


def check_row(server, base, row):
    """What is wrong with it, or nothing."""
    api, field, kind, value, more, words = row
    path, need, _ = APIS[api]
    value = value.replace("MODEL", server.model).replace("RESPONSE", base["kept"])
    place = field.rpartition("=")[0].rpartition(".")[0]
    given = (KINDS[api][place][2](json.loads(value)) if place else
             {field.partition("=")[0]: json.loads(value)})
    status, ignored, text = answer(server, path, {**need, **SHORT.get(api, {}), **more, **given})
    if kind == "refused":
        right = status == 400 and json.loads(text)["error"]["message"] == words
        return "" if right else f"not refused in these words: {status} {text[:200]}"
    if status != 200:
        return f"{status} {text[:200]}"
    if ignored != words:
        return f"left out: {ignored}"
    if kind == "harmless" and said(text) != base[api]:
        return f"not harmless: {text[:200]}"
    return ""


def check_classes(server):
    base = {}
    for api, (path, need, _) in APIS.items():
        status, ignored, text = answer(server, path, {**need, **SHORT.get(api, {}), "no_such": 1})
        assert status == 200 and ignored == "no_such", (api, status, ignored, text)
        base[api] = said(text)
        if api == "responses":
            base["kept"] = json.loads(text)["id"]
    wrong = []
    for row in rows():
        what = "" if row[2] == "header" else check_row(server, base, row)
        wrong += [f"{row[0]} {row[1]} ({row[2]}): {what}"] if what else []
    assert not wrong, "\n".join(["the table says otherwise:", *wrong])


def main():
    check_table()
    server = Server(sys.argv[1], sys.argv[2])
    run_checks(server, [("classes", lambda: check_classes(server))])


if __name__ == "__main__":
    sys.exit(main())
