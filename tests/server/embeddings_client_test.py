#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Vectors and scores through the binary, and through other people's clients.

usage: embeddings_client_test.py BINARY GOLDENS

GOLDENS is tests/golden/embeddings. Vectors are compared with those of sentence-transformers, which is not
needed. The lines of deploy/retrieval.md are run where SLUICE_TEST_PYTHON, and for Node the folder
SLUICE_TEST_NODE_MODULES, have the packages that they import.
"""
import base64
import http.client
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

from server_process import Server

BINARY, GOLDENS = sys.argv[1], pathlib.Path(sys.argv[2])
PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "deploy/retrieval.md"

TEXTS = json.loads((GOLDENS / "bert-mean.json").read_text())["texts"]


def post(server, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read()
    assert reply.status == 200, (path, reply.status, text)
    return json.loads(text)


def check_close(found, expected):
    assert len(found) == len(expected)
    for i, (a, b) in enumerate(zip(found, expected)):
        assert len(a) == len(b)
        worst = max(abs(x - y) for x, y in zip(a, b))
        assert worst <= 1e-5, f"text {i}: {worst}"


def check_vectors(name):
    golden = json.loads((GOLDENS / f"{name}.json").read_text())
    server = Server(BINARY, str(GOLDENS / name), "--kv-cache-dtype", "float32")
    limit = json.loads(server.get("/v1/models"))["data"][0]["meta"]["pooling"]["max_tokens"]
    body = post(server, "/v1/embeddings", {"input": golden["texts"], "truncate_prompt_tokens": -1})
    check_close([row["embedding"] for row in body["data"]], golden["vectors"])
    assert body["usage"]["prompt_tokens"] == sum(min(len(ids), limit) for ids in golden["ids"])
    packed = post(server, "/v1/embeddings", {"input": golden["ids"], "encoding_format": "base64"})
    unpacked = [list(struct.unpack(f"<{len(golden['vectors'][0])}f", base64.b64decode(row["embedding"])))
                for row in packed["data"]]
    check_close(unpacked, golden["vectors"])
    bare = post(server, "/embed", {"inputs": golden["texts"], "truncate": True})
    assert bare == [row["embedding"] for row in body["data"]], "two endpoints, two vectors"
    return server


def check_scores(name, *flags):
    """The server makes the pairs' ids itself: their form is the tokenizer's or the model card's."""
    golden = json.loads((GOLDENS / f"{name}.json").read_text())
    server = Server(BINARY, str(GOLDENS / name), "--kv-cache-dtype", "float32", *flags)
    for (query, document), [score], [logit] in zip(golden["pairs"], golden["vectors"], golden["logits"]):
        body = {"queries": query, "documents": document, "truncate_prompt_tokens": -1}
        check_close([[post(server, "/score", body)["data"][0]["score"]]], [[score]])
        raw = post(server, "/score", body | {"use_activation": False})["data"][0]["score"]
        assert abs(raw - logit) <= 1e-5 * max(1, abs(logit)), (raw, logit)
    query = golden["pairs"][0][0]
    ranked = post(server, "/v1/rerank", {"query": query, "documents": [pair[1] for pair in golden["pairs"]],
                                         "truncate_prompt_tokens": -1})
    scores = [row["relevance_score"] for row in ranked["results"]]
    assert scores == sorted(scores, reverse=True) and len(scores) == len(golden["pairs"])
    return server


def check_late_interaction(name):
    """Markers, prompts, lengths, tokens added to queries and those without a vector are the files'."""
    golden = json.loads((GOLDENS / f"{name}.json").read_text())
    texts = golden.get("texts", TEXTS)
    server = Server(BINARY, str(GOLDENS / name), "--kv-cache-dtype", "float32")
    for side, key in ((None, "vectors"), ("query", "query_vectors"), ("document", "document_vectors")):
        if key in golden:
            more = {"input_type": side} if side else {}
            body = post(server, "/pooling", {"input": texts, "truncate_prompt_tokens": -1, **more})
            check_close([sum(row["data"], []) for row in body["data"]], golden[key])
    for (query, document), score in zip(golden["pairs"], golden["scores"]):
        found = post(server, "/score", {"queries": query, "documents": document, "truncate_prompt_tokens": -1})
        assert abs(found["data"][0]["score"] - score) <= 1e-5 * max(1, abs(score)), (found, score)


def check_page(server):
    """The blocks of Python on the page, word by word."""
    python = os.environ.get("SLUICE_TEST_PYTHON", sys.executable)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert len(blocks) >= 2
    root = f"http://127.0.0.1:{server.port}"
    head = f"ROOT, BASE, MODEL = {root!r}, {root + '/v1'!r}, {server.model!r}\n"
    tail = "\nassert len(vectors) == 2 and all(len(vector) == 32 for vector in vectors)\n"
    for block in blocks:
        package = re.search(r"^(?:from|import) (\w+)", block, re.M).group(1)
        if subprocess.run([python, "-c", f"import {package}"], stderr=subprocess.DEVNULL,
                          check=False).returncode != 0:
            print(f"   skipped: SLUICE_TEST_PYTHON has no {package}")
            continue
        subprocess.run([python, "-c", head + block + tail], check=True, timeout=120)
        print(f"   {package}: the page's lines ran")


def check_node(server):
    """The page's blocks for Node, which ask for base64 on their own: their vectors are those of floats."""
    modules = os.environ.get("SLUICE_TEST_NODE_MODULES")
    root = f"http://127.0.0.1:{server.port}"
    head = f"const ROOT = {json.dumps(root)}, BASE = {json.dumps(root + '/v1')}, MODEL = {json.dumps(server.model)};\n"
    tail = "\nconsole.log(JSON.stringify(vectors));\n"
    texts = ["a text", "another one"]
    wanted = [row["embedding"] for row in post(server, "/v1/embeddings", {"input": texts})["data"]]
    blocks = re.findall(r"^```javascript\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert len(blocks) == 2
    for block in blocks:
        package = re.search(r'^import .* from "(.+)";$', block, re.M).group(1)
        if not modules or not (pathlib.Path(modules) / package).is_dir():
            print(f"   skipped: SLUICE_TEST_NODE_MODULES has no {package}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "node_modules").symlink_to(pathlib.Path(modules).resolve())
            script = pathlib.Path(folder) / "page.mjs"
            script.write_text(head + block + tail)
            run = subprocess.run(["node", script], stdout=subprocess.PIPE, check=True, timeout=120)
        check_close(json.loads(run.stdout), wanted)
        print(f"   {package} of Node: the page's lines ran")


def check_load(server):
    """The load client counts answers with vectors, and expects no tokens in them."""
    run = subprocess.run([BINARY, "bench", "serve", "--backend", "openai-embeddings", "--port", str(server.port),
                          "--dataset-name", "random", "--random-input-len", "8", "--num-prompts", "20"],
                         capture_output=True, text=True, timeout=60, check=True)
    assert re.search(r"^Successful requests: +20 *$", run.stdout, re.M), run.stdout
    assert re.search(r"^Total input tokens: +1[6-9]\d|^Total input tokens: +[2-9]\d\d", run.stdout, re.M), run.stdout
    assert "Shorter than asked for" not in run.stdout and "Without usage" not in run.stdout, run.stdout


def check_own_limits(name):
    """What the model's vocabulary and tables say of inputs that no client should send."""
    golden = json.loads((GOLDENS / f"{name}.json").read_text())
    vocabulary = json.loads((GOLDENS / name / "config.json").read_text())["vocab_size"]
    server = Server(BINARY, str(GOLDENS / name), "--kv-cache-dtype", "float32")

    def vectors(texts, **more):
        rows = post(server, "/v1/embeddings", {"input": texts, **more})["data"]
        return [row["embedding"] for row in rows]

    first = golden["ids"][3]
    wanted = vectors([first])
    # Ids behind the vocabulary would be tokens of another segment, or none.
    for wrong in (vocabulary, 2 * vocabulary - 1, 2 * vocabulary, -1, 2 ** 31, 2 ** 63):
        assert refusal(server, "/v1/embeddings", {"input": [first, [wrong]]}) == (400, "input")
    # The text is too long for any table, in the middle of others.
    long = "red " * 200000
    assert refusal(server, "/v1/embeddings", {"input": ["red", long]}) == (400, "input")
    assert refusal(server, "/v1/embeddings", {"input": [first * 1000]}) == (400, "input")
    cut, alone = vectors([long, "red"], truncate_prompt_tokens=-1)
    assert cut == vectors(["red " * 100], truncate_prompt_tokens=-1)[0] and alone == wanted[0]
    # NUL and what has no token are cleaned away, as in Hugging Face's tokenizers.
    assert vectors(["red\0", "\0red", "\u200bred"]) == wanted * 3
    assert vectors(["\0", " \n", "\u200b"]) == vectors([[first[0], first[-1]]]) * 3
    # A vector has the bits that it has alone, in a request of as many texts as there may be.
    texts = golden["texts"] + [f"{word} {i}" for i in range(340) for word in ("red", "cat", "sea", "hill", "rain", "fox")]
    alone = [vectors([text], truncate_prompt_tokens=-1)[0] for text in texts[:20]]
    many = vectors((texts * 2)[:2048], truncate_prompt_tokens=-1)
    assert many[:20] == alone and len(many) == 2048
    assert refusal(server, "/v1/embeddings", {"input": ["red"] * 2049}) == (400, "input")
    # Four bytes an element, whatever the weights are.
    [row] = post(server, "/v1/embeddings", {"input": "red", "encoding_format": "base64"})["data"]
    assert len(base64.b64decode(row["embedding"], validate=True)) == 4 * len(wanted[0])


def refusal(server, path, body):
    """(status, param)."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    return reply.status, json.loads(reply.read())["error"]["param"]


def main():
    server = check_vectors("qwen3-embedding")
    check_page(server)
    check_node(server)
    check_own_limits("bert-mean")
    check_load(server)
    post(server, "/rerank", {"query": "a cat", "documents": ["the cat sat on the mat", "rain falls"]})
    for name in ("bert-mean", "bert-cls", "xlm-roberta-cls", "modernbert-mean"):
        check_vectors(name)
    for name in ("bert-colbert", "bert-pylate", "modernbert-multi-vector"):
        check_late_interaction(name)
    for name in ("bert-rerank", "xlm-roberta-rerank", "modernbert-rerank", "modernbert-modules", "qwen3-judge"):
        check_scores(name)
    check_scores("qwen3-rerank", "--convert", "classify", "--hf-overrides",
                 '{"is_original_qwen3_reranker": true}')
    print("vectors, base64, the page: as they should be")


if __name__ == "__main__":
    main()
