# SPDX-License-Identifier: Apache-2.0
"""What the dashboards and alerts of deploy/ ask for, and a fleet of real servers that has it."""
import contextlib
import http.server
import importlib.util
import json
import pathlib
import re
import sys
import threading

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(REPOSITORY / "tests/server"))

from router_cluster import Cluster  # noqa: E402

COMPONENTS = REPOSITORY / "deploy/kubernetes/components"
ALERTS = COMPONENTS / "alerts/alerts.yaml"
# Labels that Prometheus itself adds to samples; in Kubernetes also those of pods.
OF_SCRAPES = {"job", "instance", "namespace", "app_kubernetes_io_name"}
# What servers with a certificate have; the fleet has none (metrics_test.cpp).
OF_TLS = {"sluice_certificate_expiry_timestamp_seconds"}
# Metrics of NVIDIA's exporter, which no machine without a GPU has.
OF_GPUS = re.compile(r"DCGM_FI_(DEV|PROF)_[A-Z_]+")
WORDS = {"and", "or", "unless", "bool"}


def script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dashboards():
    """Name of the file to what it holds."""
    return {path.name: json.loads(path.read_text())
            for path in sorted((COMPONENTS / "dashboards").glob("*.json"))}


def queries():
    """(dashboard and panel, expression) of every target of every dashboard."""
    found = []
    for name, dashboard in dashboards().items():
        for panel in dashboard["panels"]:
            found += [(f"{name}: {panel['title']}", target["expr"]) for target in panel["targets"]]
    return found


def alerts():
    """(name, expression) of every alert, read without a library."""
    text = ALERTS.read_text()
    found = []
    for rule in re.split(r"(?m)^ +- alert: ", text)[1:]:
        name = rule.split("\n", 1)[0]
        folded = re.search(r"(?m)^( +)expr: >-\n((?:\1 +\S.*\n)+)", rule)
        plain = re.search(r"(?m)^ +expr: (?!>-)(.+)$", rule)
        assert bool(folded) != bool(plain), name
        found.append((name, " ".join(folded[2].split()) if folded else plain[1]))
    return found


def asked(expression):
    """Names of metrics and of labels in an expression of PromQL."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', "", expression)
    labels = set()
    for inside in re.findall(r"\{([^}]*)\}", text):
        labels |= set(re.findall(r"(\w+)\s*(?:=|!)", inside))
    text = re.sub(r"\{[^}]*\}", "", text)
    groups = r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)"
    for inside in re.findall(groups, text):
        labels |= set(re.findall(r"\w+", inside))
    text = re.sub(r"\[[^\]]*\]|\boffset\s+\S+", "", re.sub(groups, "", text))
    names = set(re.findall(r"(?<![\w:.])[a-zA-Z_:][\w:]*\b(?!\s*\()", text)) - WORDS
    return names, labels


def samples(text):
    """Name to the labels that samples of it have, of one or more scrapes."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, labels = line.rpartition(" ")[0].partition("{")
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


def unknown(expression, known):
    """What of an expression no sample has: metrics, or labels that none of its metrics has."""
    names, labels = asked(expression)
    names = {name for name in names if not OF_GPUS.fullmatch(name)} - OF_TLS
    if not names:
        return set()
    there = set().union(OF_SCRAPES, *(known.get(name, set()) for name in names))
    return {name for name in names if name not in known and name != "up"} | (labels - there)


class Collector:
    """Takes spans by OTLP over HTTP on a free port of loopback and keeps them."""

    def __init__(self):
        self.spans = spans = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):  # noqa: N802
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                spans.extend(span for resource in body["resourceSpans"]
                             for scope in resource["scopeSpans"] for span in scope["spans"])
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def named(self, name):
        return [span for span in list(self.spans) if span["name"] == name]

    def close(self):
        self.server.shutdown()
        self.server.server_close()


DRAFTS = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 1, "adaptive": False}


class Fleet:
    """A prefill and a decode worker that drafts, behind a router, all with traces."""

    def __init__(self, binary, model, folder):
        self.collector = Collector()
        traces = ("--otlp-traces-endpoint", self.collector.url)
        self.cluster = Cluster(
            binary, model, folder, 2, num_prefill=1,
            worker_flags=("--threads", "1", "--grpc-port", "0", "--speculative-config",
                          json.dumps(DRAFTS), *traces),
            router_flags=("--handoff-min-tokens", "17", *traces))
        self.number = 0

    def processes(self):
        return [worker.server for worker in self.cluster.workers] + [self.cluster.router]

    def scrape(self):
        return [process.get("/metrics")[1] for process in self.processes()]

    def request(self):
        """One whose KV moves, as no prompt is cached under a salt of its own; and one that a worker
        answers by itself over HTTP."""
        self.number += 1
        body = {"prompt": f"{self.number} is a number, a number is a number, 12345 12345 12345",
                "max_tokens": 24, "temperature": 0, "ignore_eos": True,
                "cache_salt": f"salt {self.number}"}
        self.cluster.answer("/v1/completions", body)
        for worker in self.cluster.workers:
            status, text = worker.server.post("/v1/completions", {**body, "max_tokens": 4})
            assert status == 200, text

    def close(self):
        with contextlib.suppress(OSError):
            self.cluster.close()
        self.collector.close()
