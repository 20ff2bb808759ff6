#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each alert of deploy/ fires on series that should make it, with its labels and words, and is silent
on those that are close to them. Needs promtool (Debian's package prometheus); exit code 77 without.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import monitoring

SKIPPED = 77
TARGET = {"job": "sluice", "instance": "a"}
SERVER = TARGET | {"engine": "0", "model_name": "m"}
STEADY = "x80"  # samples, 15 s apart
RISING = "0+1x80"
AT = "18m"  # behind every window and wait
AT_OF = {"SluiceTargetsGone": "78m"}
# Where samples are a minute apart, which is Prometheus's default, it takes longer.
SLOW_AT = "72m"
SLOW_AT_OF = {"SluiceRestarts": "36m", "SluiceTargetsGone": "150m"}


def of(name, values, **labels):
    """A series of a server or a router."""
    of_no_model = ("http_", "grpc_", "up", "process_", "sluice_certificate", "sluice:router_worker",
                   "sluice:router_b", "sluice:router_fingerprint")
    own = TARGET if name.startswith(of_no_model) else SERVER
    inside = ",".join(f'{key}="{value}"' for key, value in (own | labels).items() if value)
    return {"series": f"{name}{{{inside}}}", "values": values}


def requests(running, waiting, steps):
    return [of("vllm:num_requests_running", running), of("vllm:num_requests_waiting", waiting),
            of("sluice_steps_total", steps)]


def cache(usage, waiting, preemptions):
    return [of("vllm:kv_cache_usage_perc", usage), of("vllm:num_requests_waiting", waiting),
            of("vllm:num_preemptions_total", preemptions)]


def answers(good, bad, **labels):
    base = {"handler": "/v1/chat/completions", "method": "POST"}
    return [of("http_requests_total", good, **base, status="200"),
            of("http_requests_total", bad, **base | labels)]


def calls(good, bad, code):
    base = {"grpc_service": "sluice.v1.Sluice", "grpc_method": "Chat", "grpc_type": "unary"}
    return [of("grpc_server_handled_total", good, **base, grpc_code="OK"),
            of("grpc_server_handled_total", bad, **base, grpc_code=code)]


def transfers(failed, claims):
    return [of("vllm:nixl_num_failed_transfers_total", failed),
            of("sluice_handoff_claims_total", claims)]


def fallbacks(count, claims, reason):
    return [of("sluice_handoff_fallbacks_total", count, reason=reason),
            of("sluice_handoff_claims_total", claims)]


def worker(status, values="1" + STEADY):
    return [of("sluice:router_worker_state", values, status=status, worker="w")]


def breaker(values):
    return [of("sluice:router_breaker_state", values, worker="w")]


def slow(metric, bucket, le):
    """Every observation is in one bucket, which ends at `le`."""
    return [of(metric + "_bucket", "0" + STEADY, le=bucket), of(metric + "_bucket", RISING, le=le),
            of(metric + "_bucket", RISING, le="+Inf")]


FIRST_TOKEN, BETWEEN = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
# How a target is found by its pod's annotations, and by a PodMonitor.
ANNOTATED = {"job": "kubernetes-pods", "app_kubernetes_io_name": "sluice", "namespace": "chat"}
MONITORED = {"job": "chat/sluice", "namespace": "chat"}
OTHER = {"job": "node"}


def files(num_open, **labels):
    return [of("process_open_fds", num_open + STEADY, **labels),
            of("process_max_fds", "1000" + STEADY, **labels)]


def version(num_requests, num_workers):
    return [of("sluice:router_fingerprint_requests", num_requests, fingerprint="fp_1"),
            of("sluice:router_fingerprint_workers", num_workers, fingerprint="fp_1")]


def differs(values):
    return [of("sluice:router_worker_differs", values, worker="w", fingerprint="fp_1")]


# Alert: its severity, labels and words, what makes it fire, and what does not. What fires with more
# labels says so: (series, labels).
CASES = {
    "SluiceAbsent": ("critical", {}, "Prometheus knows no target of Sluice.",
                     [[of("up", "1" + STEADY, **OTHER)]],
                     [[of("up", "0" + STEADY)], [of("up", "1" + STEADY, **ANNOTATED)],
                      [of("up", "1" + STEADY, **MONITORED)]]),
    "SluiceTargetsGone": ("critical", {"job": "sluice"},
                          "The job {job} has no target left; an hour ago there were 2.",
                          [[of("up", "1x120 stale"), of("up", "1x120 stale", instance="b")],
                           ([of("up", "1x120 stale", **ANNOTATED),
                             of("up", "0x120 stale", **ANNOTATED, instance="b")],
                            {"job": "kubernetes-pods", "namespace": "chat"})],
                          [[of("up", "1x400")], [of("up", "1x120 stale", **OTHER)],
                           [of("up", "1x120 stale"), of("up", "1x400", instance="b")]]),
    "SluiceDown": ("critical", TARGET, "a does not answer /metrics.",
                   [[of("up", "0" + STEADY)], ([of("up", "0" + STEADY, **ANNOTATED)], ANNOTATED),
                    ([of("up", "0" + STEADY, **MONITORED)], MONITORED)],
                   [[of("up", "1" + STEADY)], [of("up", "0" + STEADY, job="node")],
                    [of("up", "1x64 0x3 1x10")]]),
    "SluiceRestarts": ("warning", TARGET, "a has started 3 times within half an hour.",
                       [[of("process_start_time_seconds", "1x10 2x10 3x10 4x80")],
                        ([of("process_start_time_seconds", "1x10 2x10 3x10 4x80", **ANNOTATED)],
                         ANNOTATED)],
                       [[of("process_start_time_seconds", "1x10 2x10 3x80")],
                        [of("process_start_time_seconds", "1x10 2x10 3x10 4x80", **OTHER)]]),
    "SluiceFilesScarce": ("warning", TARGET, "a has 95% of the files open that it may have.",
                          [files("950"), (files("950", **ANNOTATED), ANNOTATED)],
                          [files("850"), files("950", **OTHER)]),
    "SluiceCertificateExpires": ("warning", TARGET, "The certificate of a ends in 1d 0h 0m 0s.",
                                 [[of("sluice_certificate_expiry_timestamp_seconds", "87480" + STEADY)]],
                                 [[of("sluice_certificate_expiry_timestamp_seconds", "1300000" + STEADY)]]),
    "SluiceFirstTokensLate": ("warning", TARGET, "On a a tenth of the first tokens take more than 38s.",
                              [slow(FIRST_TOKEN, "20", "40")],
                              [slow(FIRST_TOKEN, "5", "7.5"), slow(BETWEEN, "20", "40")]),
    "SluiceTokensSlow": ("warning", TARGET, "On a a tenth of the tokens take more than 975ms.",
                         [slow(BETWEEN, "0.75", "1")], [slow(BETWEEN, "0.2", "0.3")]),
    "SluiceStuck": ("critical", SERVER, "a has 5 requests and completes no step.",
                    [requests("3" + STEADY, "2" + STEADY, "7" + STEADY),
                     requests("0" + STEADY, "5" + STEADY, "7" + STEADY)],
                    [requests("3" + STEADY, "2" + STEADY, RISING),
                     requests("0" + STEADY, "0" + STEADY, "7" + STEADY),
                     requests("3" + STEADY, "2" + STEADY, "0" + STEADY) +
                     [of("sluice:router_usable_workers", "2" + STEADY)]]),
    "SluiceQueueGrowing": ("warning", SERVER, "On a ever more requests wait, for minutes.",
                           [[of("vllm:num_requests_waiting", "1+1x80")]],
                           [[of("vllm:num_requests_waiting", "5" + STEADY)],
                            [of("vllm:num_requests_waiting", "0 4 9 " * 27)],
                            [of("vllm:num_requests_waiting", "90-1x80")]]),
    "SluiceQueueFull": ("warning", SERVER,
                        "a refuses 1 requests a second: its queue is full.",
                        [[of("vllm:admission_rejections_total", "0+15x80")]],
                        [[of("vllm:admission_rejections_total", "15" + STEADY)]]),
    "SluiceKvCacheFull": ("warning", SERVER,
                          "The KV cache of a is full, and requests wait or are preempted.",
                          [cache("0.99" + STEADY, "4" + STEADY, "0" + STEADY),
                           cache("0.99" + STEADY, "0" + STEADY, RISING)],
                          [cache("0.99" + STEADY, "0" + STEADY, "3" + STEADY),
                           cache("0.9" + STEADY, "4" + STEADY, RISING),
                           cache("0.99 0.99 0.99 0.5 " * 20, "4" + STEADY, RISING)]),
    "SluiceErrors": ("critical", TARGET, "9.091% of the answers of a are 5xx.",
                     [answers("0+10x80", RISING, status="500"),
                      answers("0+10x80", RISING, status="503")],
                     [answers("0+10x80", RISING, status="429"),
                      answers("0+100x80", RISING, status="500"),
                      answers("0+10x80", RISING, status="503", handler="/health")]),
    "SluiceGrpcErrors": ("critical", TARGET, "9.091% of the gRPC calls of a fail.",
                         [calls("0+10x80", RISING, "Internal")],
                         [calls("0+10x80", RISING, "InvalidArgument"),
                          calls("0+100x80", RISING, "Unavailable")]),
    "SluiceSpansDropped": ("info", SERVER, "The collector takes not all spans of a.",
                           [[of("sluice_trace_spans_dropped_total", RISING)]],
                           [[of("sluice_trace_spans_dropped_total", "8" + STEADY)]]),
    "SluiceRouterHasNoWorker": ("critical", SERVER, "a has no worker to send requests to.",
                                [[of("sluice:router_usable_workers", "0" + STEADY)]],
                                [[of("sluice:router_usable_workers", "1" + STEADY)]]),
    "SluiceWorkerDown": ("warning", TARGET | {"status": "silent", "worker": "w"},
                         "For a the worker w is silent.", [worker("silent")],
                         [worker("live"), worker("draining"), worker("silent", "1x12 stale")]),
    "SluiceBreakerOpen": ("warning", TARGET | {"worker": "w"},
                          "a sends the worker w nothing: its requests fail.",
                          [breaker("2" + STEADY), breaker("2 1 " * 40)],
                          [breaker("0" + STEADY), breaker("1" + STEADY), breaker("0x69 2 0x10")]),
    "SluiceDrainTooLong": ("warning", TARGET | {"status": "draining", "worker": "w"},
                           "The worker w drains and does not end.", [worker("draining")],
                           [worker("draining", "1x6 stale"), worker("live")]),
    "SluiceWorkerDiffers": ("warning", TARGET | {"worker": "w", "fingerprint": "fp_1"},
                            "a sends the worker w nothing new: its fp_1 is not the others'.",
                            [differs("1" + STEADY)],
                            [differs("0" + STEADY), differs("1x50 0x30")]),
    "SluiceVersionGone": ("critical", TARGET | {"fingerprint": "fp_1"},
                          "4 requests of a end with errors unless a worker of fp_1 comes back.",
                          [version("4" + STEADY, "0" + STEADY)],
                          [version("4" + STEADY, "1" + STEADY),
                           version("0" + STEADY, "0" + STEADY),
                           version("4 0 " * 40, "0" + STEADY)]),
    "SluiceRequestsLost": ("critical", SERVER, "a has lost requests for want of a worker.",
                           [[of("sluice:router_lost_requests_total", RISING)]],
                           [[of("sluice:router_lost_requests_total", "3" + STEADY)]]),
    "SluiceKvTransfersFail": ("warning", SERVER, "10% of the KV for a does not come whole.",
                              [transfers(RISING, "0+10x80")],
                              [transfers("7" + STEADY, "0+10x80"), transfers(RISING, "0+100x80")]),
    "SluiceKvComputedTwice": ("warning", TARGET,
                              "a computes 50% of the prompts that other workers have computed.",
                              [fallbacks("0+5x80", "0+10x80", "no_answer")],
                              [fallbacks("0+5x80", "0+10x80", "draining"),
                               fallbacks("0+5x80", "0+10x80", "deadline"),
                               fallbacks(RISING, "0+10x80", "refused")]),
    "SluiceKvNotFetched": ("warning", SERVER, "Nobody fetches KV that a keeps for others.",
                           [[of("vllm:nixl_num_kv_expired_reqs_total", RISING)]],
                           [[of("vllm:nixl_num_kv_expired_reqs_total", "2" + STEADY)]]),
}


def rule_test(alert, series, expected, eval_times):
    return {"interval": "15s", "input_series": series,
            "alert_rule_test": [{"alertname": alert, "eval_time": time, "exp_alerts": expected}
                                for time in eval_times]}


def run(*arguments):
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


class Alerts(unittest.TestCase):
    def check(self, tests, interval="15s"):
        with tempfile.TemporaryDirectory() as folder:
            # JSON is YAML.
            path = pathlib.Path(folder) / "tests.json"
            path.write_text(json.dumps({"rule_files": [str(monitoring.ALERTS)],
                                        "evaluation_interval": interval, "tests": tests}))
            return run("test", "rules", str(path))

    def test_every_alert_is_tested(self):
        self.assertEqual(sorted(CASES), sorted(name for name, _ in monitoring.alerts()))

    def test_promtool_takes_them(self):
        code, text = run("check", "rules", str(monitoring.ALERTS))
        self.assertEqual(code, 0, text)

    def test_they_fire_and_are_silent(self):
        tests = []
        for alert, (severity, labels, words, firing, silent) in CASES.items():
            self.assertTrue(firing and silent, alert)
            at = AT_OF.get(alert, AT)
            for each in firing:
                series, more = each if isinstance(each, tuple) else (each, {})
                expected = [{"exp_labels": labels | more | {"severity": severity},
                             "exp_annotations": {"summary": words.format_map(labels | more)}}]
                tests.append(rule_test(alert, series, expected, [at]))
            tests += [rule_test(alert, series, [], ["2m", "6m", "11m", at]) for series in silent]
        code, text = self.check(tests)
        self.assertEqual(code, 0, text)

    def test_they_fire_at_slow_scrapes(self):
        tests = []
        for alert, (_, _, _, firing, _) in CASES.items():
            for each in firing:
                series = each[0] if isinstance(each, tuple) else each
                expr = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
                tests.append({"name": alert, "interval": "60s", "input_series": series,
                              "promql_expr_test": [{"expr": expr,
                                                    "eval_time": SLOW_AT_OF.get(alert, SLOW_AT),
                                                    "exp_samples": [{"labels": "{}", "value": 1}]}]})
        code, text = self.check(tests, "60s")
        self.assertEqual(code, 0, text)

    def test_an_alert_that_does_not_fire_is_noticed(self):
        _, labels, words, _, silent = CASES["SluiceStuck"]
        expected = [{"exp_labels": labels | {"severity": "critical"},
                     "exp_annotations": {"summary": words}}]
        code, text = self.check([rule_test("SluiceStuck", silent[0], expected, [AT])])
        self.assertNotEqual(code, 0, text)


if __name__ == "__main__":
    if shutil.which("promtool") is None:
        print("skipped: no promtool (Debian's package prometheus)")
        sys.exit(SKIPPED)
    unittest.main()
