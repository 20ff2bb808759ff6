#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What becomes of each field that the clients' types know: sdk_requests_test.py BINARY MODEL.

The tables sdk_requests.txt and sdk_members.txt name each field, each member of an object and each
value of a closed set with a class; here they are held against the types, and the classes against a
running server, which proves those of vllm_requests.txt too. Runs where
SLUICE_TEST_PYTHON has the packages `openai` and `anthropic`.
"""
import json
import pathlib
import sys

from server_process import Server, needs, run_checks

needs("openai", "anthropic")
from sdk_requests import APIS, AROUND, fields_of  # noqa: E402

HERE = pathlib.Path(__file__)
TABLES = [HERE.with_name(name) for name in ("sdk_requests.txt", "sdk_members.txt")]
EXTRAS = [HERE.with_name("vllm_requests.txt")]
HEADER = "x-sluice-ignored-arguments"
# The same answer each time.
SHORT = {"chat": {"max_tokens": 4, "temperature": 0},
         "completions": {"max_tokens": 4, "temperature": 0},
         "responses": {"max_output_tokens": 4, "temperature": 0},
         "messages": {"max_tokens": 4, "temperature": 0}}


def rows(tables):
    """(API, field, class, value, what it needs besides, words) of each line."""
    for line in sum((table.read_text().splitlines() for table in tables), []):
        if not line or line.startswith("#"):
            continue
        line, _, words = line.partition(" -> ")
        line, _, more = line.partition(" + ")
        api, field, kind, value = (line.split(" ", 3) + [""])[:4]
        yield api, field, kind, value, json.loads(more or "{}"), words


CLOSED = ("refused", "left-out", "header")


def check_table():
    named = [f"{api} {field}" for api, field, *_ in rows(TABLES)]
    closed = {f"{api} {field}" for api, field, kind, *_ in rows(TABLES) if kind in CLOSED}
    known = [f"{api} {field}" for api in APIS for field in fields_of(api, closed.__contains__)]
    assert len(set(named)) == len(named), "a field is named twice"
    assert not set(known) - set(named), f"without a class: {sorted(set(known) - set(named))}"
    assert not set(named) - set(known), f"the types know no {sorted(set(named) - set(known))}"


class Samples:
    """Requests that have one field each, made of the table's values."""

    def __init__(self, fill=lambda value: value):
        self.values, self.kinds = {}, {}
        for api, field, _, value, *_ in rows(TABLES):
            path, _, kind = field.partition("=")
            self.values.setdefault((api, path), fill(value))
            self.kinds[api, path.rpartition(".")[0], kind] = fill(value)

    def at(self, api, place):
        """The object there, of which a row tells a member."""
        outer, kind = of_kind(place)
        if kind:
            return json.loads(self.kinds[api, outer, kind])
        if place.endswith("[]"):
            return json.loads(self.values[api, place[:-2]])[0]
        return json.loads(self.values[api, place])

    def around(self, api, place, value):
        """A request's fields with `value` at a place."""
        place = of_kind(place)[0]
        if place in AROUND.get(api, {}):
            return AROUND[api][place](value)
        if place.endswith("[]"):
            return self.around(api, place[:-2], [value])
        outer, _, name = place.rpartition(".")
        if not outer:
            return {name: value}
        return self.around(api, outer, {**self.at(api, outer), name: value})

    def of(self, api, field, value):
        """(fields with the value, fields without it)."""
        path = field.partition("=")[0]
        outer, _, name = path.rpartition(".")
        if not outer:
            return {name: value}, {}
        if "=" in field and isinstance(value, dict):  # an object of the kind that the field names
            return self.around(api, outer, value), self.without(api, outer.removesuffix("[]"))
        return self.around(api, path, value), self.without(api, path)

    def without(self, api, path):
        outer, _, name = path.rpartition(".")
        if not outer:
            return {}
        rest = self.at(api, outer)
        rest.pop(name, None)
        return self.around(api, outer, rest)


def of_kind(place):
    """(place, the kind of the object there that is meant, or nothing)."""
    outer, _, last = place.rpartition(".")
    last, _, kind = last.partition(":")
    return (f"{outer}.{last}" if outer else last), kind


def answer(server, path, body):
    connection, got = server.post(body, path)
    text = got.read().decode()
    connection.close()
    return got.status, got.getheader(HEADER) or "", text


def said(text):
    """What an answer says, whole or in events, without its names and times."""
    if text.startswith("data:"):
        chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        return "".join(choice.get("text") or choice.get("delta", {}).get("content") or ""
                       for chunk in chunks for choice in chunk["choices"])
    value = json.loads(text)
    if "output" in value:
        return [part["text"] for item in value["output"] for part in item["content"]]
    return [value.get(name) for name in ("choices", "content", "input_tokens")]


def check_row(server, samples, kept, row):
    """What is wrong with it, or nothing."""
    api, field, kind, value, more, words = row
    path, need, _ = APIS[api]
    need = {**need, **SHORT.get(api, {}), **more}
    given, rest = samples.of(api, field, json.loads(kept(value)))
    status, ignored, text = answer(server, path, {**need, **given})
    if kind == "refused":
        right = status == 400 and json.loads(text)["error"]["message"] == words
        return "" if right else f"not refused in these words: {status} {text[:200]}"
    if status != 200:
        return f"{status} {text[:200]}"
    if ignored != words:
        return f"left out: {ignored}"
    if kind == "harmless" and said(text) != said(answer(server, path, {**need, **rest})[2]):
        return f"not harmless: {text[:200]}"
    return ""


def check_classes(server):
    response = ""
    for api, (path, need, _) in APIS.items():
        status, ignored, text = answer(server, path, {**need, **SHORT.get(api, {}), "no_such": 1})
        assert status == 200 and ignored == "no_such", (api, status, ignored, text)
        response = response or json.loads(text)["id"] if api == "responses" else response

    def filled(value):
        return value.replace("MODEL", server.model).replace("RESPONSE", response)

    samples, wrong = Samples(filled), []
    for row in rows(TABLES + EXTRAS):
        what = "" if row[2] == "header" else check_row(server, samples, filled, row)
        wrong += [f"{row[0]} {row[1]} ({row[2]}): {what}"] if what else []
    assert not wrong, "\n".join(["the table says otherwise:", *wrong])


def main():
    check_table()
    server = Server(sys.argv[1], sys.argv[2])
    run_checks(server, [("classes", lambda: check_classes(server))])


if __name__ == "__main__":
    sys.exit(main())
