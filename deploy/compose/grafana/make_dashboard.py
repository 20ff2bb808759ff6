#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes sluice.json, the Grafana dashboard, from the table below: python3 make_dashboard.py"""
import json
import pathlib

QUANTILES = (0.5, 0.9, 0.99)


def latency(metric):
    return [(f"histogram_quantile({q}, sum by (le) (rate({metric}_bucket[$__rate_interval])))",
             f"p{q * 100:g}") for q in QUANTILES]


def rate(metric, label):
    return [(f"sum(rate({metric}[$__rate_interval]))", label)]


# Title, unit, [(expression, legend), ...]
PANELS = [
    ("Requests", "short", [("sum(vllm:num_requests_running)", "running"),
                           ("sum(vllm:num_requests_waiting)", "waiting")]),
    ("Finished requests per second", "reqps",
     [("sum by (finished_reason) (rate(vllm:request_success_total[$__rate_interval]))",
       "{{finished_reason}}")]),
    ("Tokens per second", "short", rate("vllm:prompt_tokens_total", "prompt") +
     rate("vllm:generation_tokens_total", "generated")),
    ("KV cache in use", "percentunit", [("max(vllm:kv_cache_usage_perc)", "used")]),
    ("Time to first token", "s", latency("vllm:time_to_first_token_seconds")),
    ("Time between tokens", "s", latency("vllm:inter_token_latency_seconds")),
    ("End-to-end latency", "s", latency("vllm:e2e_request_latency_seconds")),
    ("Time in queue", "s", latency("vllm:request_queue_time_seconds")),
    ("Prefix cache hit rate", "percentunit",
     [("sum(rate(vllm:prefix_cache_hits_total[$__rate_interval])) / "
       "sum(rate(vllm:prefix_cache_queries_total[$__rate_interval]))", "hits")]),
    ("Preemptions per second", "short", rate("vllm:num_preemptions_total", "preempted")),
    ("Engine steps per second", "short", rate("sluice_steps_total", "steps")),
    ("Tokens in a step", "short", latency("vllm:iteration_tokens_total")),
]


def panel(index, title, unit, queries):
    return {
        "id": index + 1,
        "title": title,
        "type": "timeseries",
        "datasource": {"type": "prometheus", "uid": "prometheus"},
        "gridPos": {"x": index % 2 * 12, "y": index // 2 * 8, "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"refId": chr(ord("A") + i), "expr": expression, "legendFormat": legend}
                    for i, (expression, legend) in enumerate(queries)],
    }


def dashboard():
    return {
        "uid": "sluice",
        "title": "Sluice",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "panels": [panel(index, *row) for index, row in enumerate(PANELS)],
    }


if __name__ == "__main__":
    target = pathlib.Path(__file__).parent / "sluice.json"
    target.write_text(json.dumps(dashboard(), indent=1) + "\n")
