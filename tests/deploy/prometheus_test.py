#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes a router, a prefill and a decode worker under load: its own linter has
nothing against what they say, every query of every dashboard gives data, every alert can be
evaluated and none fires, and buckets lead to traces that the collector has, also of KV on its way.

usage: prometheus_test.py BINARY MODEL

Needs prometheus and promtool (Debian's package prometheus); exit code 77 without.
"""
import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

import monitoring
import promtool
from server_process import SKIPPED, free_port, wait_until

# Debian keeps a daemon's program where not every user looks.
PATH = os.environ["PATH"] + os.pathsep + "/usr/sbin" + os.pathsep + "/sbin"
WINDOW = "30s"  # of rates; it has to hold two scrapes of a busy machine
PATIENCE_S = 90


class Prometheus:
    def __init__(self, folder, targets):
        self.port = free_port()
        settings = {"global": {"scrape_interval": "500ms", "scrape_timeout": "500ms",
                               "evaluation_interval": "500ms"},
                    "rule_files": [str(monitoring.ALERTS)],
                    "scrape_configs": [{"job_name": "sluice",
                                        "static_configs": [{"targets": targets}]}]}
        path = os.path.join(folder, "prometheus.json")  # JSON is YAML
        with open(path, "w", encoding="utf-8") as file:
            json.dump(settings, file)
        self.log_path = os.path.join(folder, "prometheus.log")
        with open(self.log_path, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [shutil.which("prometheus", path=PATH), f"--config.file={path}",
                 f"--storage.tsdb.path={os.path.join(folder, 'data')}",
                 f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn",
                 "--enable-feature=exemplar-storage"], stdout=log, stderr=log)

    def ask(self, path, **parameters):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
            answer = json.loads(connection.getresponse().read())
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]

    def query(self, expression):
        chosen = re.sub(r"\$(namespace|job|model|instance)\b", ".*",
                        expression.replace("$__rate_interval", WINDOW))
        return self.ask("query", query=chosen)["result"]

    def is_up(self, count):
        assert self.process.poll() is None, self.log()
        try:
            return len(self.query("up == 1")) == count
        except (OSError, ValueError):  # it does not listen yet, or says in words that it starts
            return False

    def log(self):
        with open(self.log_path, encoding="utf-8") as log:
            return log.read()[-4000:]

    def stop(self):
        self.process.kill()
        self.process.wait()


class Load:
    """Requests one after another until it is stopped."""

    def __init__(self, fleet):
        self.fleet, self.is_over, self.error = fleet, False, None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            while not self.is_over:
                self.fleet.request()
                time.sleep(0.05)
        except Exception as error:  # for who waits
            self.error = error

    def stop(self):
        self.is_over = True
        self.thread.join()


def check_scrapes(fleet):
    for process in fleet.processes():
        complaints = promtool.complaints(process.get("/metrics")[1].encode())
        assert not complaints, complaints


def is_of_gpus(expression):
    return all(monitoring.OF_GPUS.fullmatch(name) for name in monitoring.asked(expression)[0])


def has_data(result):
    """Not only what nothing divided by nothing is."""
    return any(series["value"][1] != "NaN" for series in result)


def empty_queries(prometheus, queries):
    """Where there are no data; a query that is wrong in itself raises."""
    return [where for where, text in queries
            if not is_of_gpus(text) and not has_data(prometheus.query(text))]


def check_dashboards(prometheus, load):
    queries = monitoring.queries()

    def have_data():
        assert load.error is None, load.error
        return not empty_queries(prometheus, queries)
    deadline = time.monotonic() + PATIENCE_S
    while not have_data():
        assert time.monotonic() < deadline, empty_queries(prometheus, queries)
    gpus = [text for _, text in queries if is_of_gpus(text)]
    assert 0 < len(gpus) < 10
    # Mistakes are found: a wrong name, and a query that is none.
    where, right = next(query for query in queries if "vllm:num_requests" in query[1])
    wrong = right.replace("vllm:num_requests", "vllm:no_requests")
    assert empty_queries(prometheus, [(where, wrong)]) == [where]
    try:
        prometheus.query(right + "(")
    except AssertionError:
        return
    raise AssertionError("a query that cannot be read was taken")


def check_alerts(prometheus):
    expected = monitoring.alerts()

    def rules():
        return [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    wait_until("the alerts are evaluated",
               lambda: all(rule["health"] == "ok" for rule in rules()), PATIENCE_S)
    assert sorted(rule["name"] for rule in rules()) == sorted(name for name, _ in expected)
    for rule in rules():
        assert rule["state"] != "firing", rule
    for name, expression in expected:
        prometheus.query(expression)
        for metric in monitoring.asked(expression)[0] - monitoring.OF_TLS:
            assert prometheus.query(metric), f"{name}: no {metric}"


def check_exemplars(prometheus, fleet):
    """Histograms that the router and the workers have name traces, which went to the collector."""
    for metric in ("vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
                   "vllm:e2e_request_latency_seconds"):
        now = time.time()
        found = prometheus.ask("query_exemplars", query=metric + "_bucket", start=now - 600, end=now)
        instances = {series["seriesLabels"]["instance"] for series in found}
        assert len(instances) == 3, f"{metric}: {instances}"
        names = {(each["labels"]["trace_id"], each["labels"]["span_id"])
                 for series in found for each in series["exemplars"]}
        # The collector gets spans a second later than they end; those of the longest ago are there.
        wait_until(f"the spans of {metric}", lambda: names & {
            (span["traceId"], span["spanId"]) for span in list(fleet.collector.spans)}, 30)


def attributes(span):
    return {item["key"]: next(iter(item["value"].values())) for item in span["attributes"]}


def check_transfers(fleet):
    """Both ends of a transfer are below the decode worker's span, which is below the router's."""
    collector = fleet.collector
    sent, received = [], []

    def have_come():
        received[:] = collector.named("kv_transfer receive")
        sent[:] = collector.named("kv_transfer send")
        return any(one["parentSpanId"] == other["parentSpanId"] for one in sent for other in received)
    wait_until("both ends of a transfer", have_come, PATIENCE_S)
    send, receive = next((one, other) for one in sent for other in received
                         if one["parentSpanId"] == other["parentSpanId"])
    assert send["traceId"] == receive["traceId"]
    wait_until("the request's span", lambda: any(
        span["spanId"] == send["parentSpanId"] for span in collector.named("generate")), PATIENCE_S)
    request = next(span for span in collector.named("generate")
                   if span["spanId"] == send["parentSpanId"])
    wait_until("the router's span", lambda: any(
        span["spanId"] == request["parentSpanId"] for span in list(collector.spans)), PATIENCE_S)
    for span in (send, receive):
        of = attributes(span)
        assert of["sluice.kv.outcome"] == "done", of
        assert int(of["sluice.kv.blocks"]) > 0 and int(of["sluice.kv.bytes"]) > 0, of
    assert attributes(send) == attributes(receive)


def main():
    binary, model = sys.argv[1:]
    missing = [name for name in ("prometheus", "promtool") if shutil.which(name, path=PATH) is None]
    if missing:
        print(f"skipped: no {' nor '.join(missing)} (Debian's package prometheus)")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        fleet = monitoring.Fleet(binary, model, folder)
        stack.callback(fleet.close)
        targets = [f"127.0.0.1:{process.port}" for process in fleet.processes()]
        prometheus = Prometheus(folder, targets)
        stack.callback(prometheus.stop)
        wait_until("Prometheus scrapes", lambda: prometheus.is_up(len(targets)), PATIENCE_S)
        load = Load(fleet)
        stack.callback(load.stop)
        for name, check in (("scrapes", lambda: check_scrapes(fleet)),
                            ("dashboards", lambda: check_dashboards(prometheus, load)),
                            ("alerts", lambda: check_alerts(prometheus)),
                            ("exemplars", lambda: check_exemplars(prometheus, fleet)),
                            ("transfers", lambda: check_transfers(fleet))):
            started = time.monotonic()
            check()
            print(f"ok {name} ({time.monotonic() - started:.1f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
