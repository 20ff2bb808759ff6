#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks a server with OpenAI's API one question and prints the answer as it comes. Needs nothing but
Python. Usage: ask.py URL QUESTION; URL is http://HOST:PORT. Exit code 0 only when the answer came to
its proper end."""
import json
import sys
import urllib.error
import urllib.request

# The server is this machine's: no proxy.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def print_events(stream):
    """Prints the text of an event stream; true when it ended properly."""
    for raw in stream:
        line = raw.decode().strip()
        if line == "data: [DONE]":
            print()
            return True
        if not line.startswith("data: "):
            continue
        event = json.loads(line[len("data: "):])
        if "error" in event:
            sys.exit("the server answered: " + event["error"]["message"])
        for choice in event.get("choices", []):
            print(choice["delta"].get("content") or "", end="", flush=True)
    return False


def ask(url, question):
    with OPENER.open(url + "/v1/models", timeout=30) as listed:
        name = json.load(listed)["data"][0]["id"]
    print(f"> {question}", flush=True)
    body = {"model": name, "stream": True, "max_tokens": 200, "temperature": 0,
            "messages": [{"role": "user", "content": question}]}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with OPENER.open(request, timeout=120) as stream:
        if not print_events(stream):
            sys.exit("the stream broke off")


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: ask.py URL QUESTION")
    try:
        ask(sys.argv[1].rstrip("/"), sys.argv[2])
    except urllib.error.HTTPError as error:
        sys.exit(f"the server answered {error.code}: {error.read(4096).decode(errors='replace')}")
    except (OSError, ValueError, KeyError, IndexError) as error:
        sys.exit(f"no answer from {sys.argv[1]}: {error}")


if __name__ == "__main__":
    main()
