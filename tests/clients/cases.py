# SPDX-License-Identifier: Apache-2.0
"""One client's realistic main path: cases.py CLIENT URL FOLDER, in a Python that has the client.

Prints the client's version; fails where the client does not get what the script of scripts.py says.
"""
import importlib
import importlib.metadata
import os
import pathlib
import sys

CASES = {}
URL, WORK = "", pathlib.Path()
MODEL, OPENAI = "scripted", {}  # the server in the words of OpenAI's client
MODULES = ("cases_coding", "cases_tools", "cases_retrieval", "cases_sdks", "cases_frameworks")


def version_of(package):
    return importlib.metadata.version(package)


def case(client, version=None):
    """Registers a function as the main path of `client`, a package's name unless `version` is given."""
    def register(function):
        CASES[client] = (function, version or (lambda: version_of(client)))
        return function
    return register


def main(client, url, work):
    # The case files import this module by its name.
    me = importlib.import_module("cases")
    me.URL, me.WORK = url, pathlib.Path(work)
    me.OPENAI.update(base_url=url + "/v1", api_key="none")
    me.WORK.mkdir(parents=True)
    os.chdir(work)
    # A file's imports are there where its clients are.
    for name in MODULES:
        if client not in me.CASES:
            importlib.import_module(name)
    function, version = me.CASES[client]
    print(f"version {version()}", flush=True)
    function()
    print("passed", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
