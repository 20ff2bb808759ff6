#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the Grafana dashboards beside it from the tables below: python3 make_dashboards.py"""
import json
import pathlib

QUANTILES = (0.5, 0.9, 0.99)
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Chosen above the panels: name of the variable, label of metrics, what people read. In this order, each
# has the values that those before it leave.
CHOICES = (("namespace", "namespace", "Namespace"), ("job", "job", "Job"), ("model", "model_name", "Model"),
           ("instance", "instance", "Instance"))
# Metrics of a process or a connection, not of a model.
OF_NO_MODEL = ("http_", "grpc_", "process_", "sluice_build_info", "sluice:router_worker_",
               "sluice:router_breaker_", "sluice:router_fingerprint_")


def own(metric, choices=CHOICES):
    """The metric of those that were chosen."""
    kept = [each for each in choices if each[0] != "model" or not metric.startswith(OF_NO_MODEL)]
    return metric + "{" + ",".join(f'{label}=~"${name}"' for name, label, _ in kept) + "}"


def latency(metric, of=""):
    return [(f"histogram_quantile({q}, sum by (le) (rate({own(metric + '_bucket')}[$__rate_interval])))",
             f"{of} p{q * 100:g}".strip()) for q in QUANTILES]


def names(label, of):
    """A name for each curve: what it is of, and its labels."""
    return " ".join([*([of] if of else []), *(f"{{{{{each}}}}}" for each in label.split(", "))])


def rate(metric, legend):
    return [(f"sum(rate({own(metric)}[$__rate_interval]))", legend)]


def rate_by(metric, label, of=""):
    return [(f"sum by ({label}) (rate({own(metric)}[$__rate_interval]))", names(label, of))]


def level(metric, legend):
    return [(f"sum({own(metric)})", legend)]


def level_by(metric, label, of=""):
    return [(f"sum by ({label}) ({own(metric)})", names(label, of))]


def share(part, whole, legend):
    return [(f"sum(rate({own(part)}[$__rate_interval])) / sum(rate({own(whole)}[$__rate_interval]))",
             legend)]


def of_devices(metric):
    """What NVIDIA's DCGM exporter says of each GPU."""
    return [(f"avg by (Hostname, gpu) ({metric})", "{{Hostname}} {{gpu}}")]


KV_CACHE = ("KV cache in use", "percentunit",
            [(f"{own('vllm:kv_cache_usage_perc')}", "{{instance}}")])
STEPS = ("Engine steps per second", "short", rate("sluice_steps_total", "steps"))
STEP_TIME = ("Time of a step", "s", latency("sluice_step_seconds"))
STEP_TOKENS = ("Tokens in a step", "short", latency("vllm:iteration_tokens_total"))
TOKENS = ("Tokens per second", "short", rate("vllm:prompt_tokens_total", "prompt") +
          rate("vllm:generation_tokens_total", "generated"))

# Title, unit, [(expression, legend), ...]
GENERAL = [
    ("Requests", "short", level("vllm:num_requests_running", "running") +
     level("vllm:num_requests_waiting", "waiting")),
    ("Finished requests per second", "reqps",
     rate_by("vllm:request_success_total", "finished_reason")),
    TOKENS,
    KV_CACHE,
    ("Time to first token", "s", latency("vllm:time_to_first_token_seconds")),
    ("Time between tokens", "s", latency("vllm:inter_token_latency_seconds")),
    ("End-to-end latency", "s", latency("vllm:e2e_request_latency_seconds")),
    ("Time in queue", "s", latency("vllm:request_queue_time_seconds")),
    ("HTTP responses per second", "reqps", rate_by("http_requests_total", "status")),
    ("Refused and expired requests per second", "reqps",
     rate("vllm:admission_rejections_total", "refused") +
     rate("sluice_expired_requests_total", "expired")),
    ("Prefix cache hit rate", "percentunit",
     share("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total", "hits")),
    ("Preemptions per second", "short", rate("vllm:num_preemptions_total", "preempted")),
    STEPS,
    STEP_TIME,
    STEP_TOKENS,
    ("Tokens of prompts and answers", "short", latency("vllm:request_prompt_tokens", "prompt")[:2] +
     latency("vllm:request_generation_tokens", "answer")[:2]),
    ("Spans for the collector per second", "short",
     rate("sluice_trace_spans_exported_total", "taken") +
     rate("sluice_trace_spans_dropped_total", "dropped")),
    ("Processors of the process", "short", rate_by("process_cpu_seconds_total", "instance")),
    ("Memory of the process", "bytes", level_by("process_resident_memory_bytes", "instance")),
    ("Open files", "percentunit",
     [(f"{own('process_open_fds')} / {own('process_max_fds')}", "{{instance}}")]),
    ("Time since the start", "s",
     [(f"time() - {own('process_start_time_seconds')}", "{{instance}}")]),
    ("Instances of each version", "short",
     [(f"count by (version, backend) ({own('sluice_build_info')})", "{{version}} {{backend}}")]),
]

GPU = [
    ("Time without a step", "percentunit",
     [(f"rate({own('sluice_device_idle_seconds_total')}[$__rate_interval])", "{{instance}}")]),
    STEP_TIME,
    STEPS,
    STEP_TOKENS,
    TOKENS,
    KV_CACHE,
    ("Utilization", "percent", of_devices("DCGM_FI_DEV_GPU_UTIL")),
    ("Tensor cores active", "percentunit", of_devices("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")),
    ("Memory interface active", "percentunit", of_devices("DCGM_FI_PROF_DRAM_ACTIVE")),
    ("Memory in use", "mbytes", of_devices("DCGM_FI_DEV_FB_USED")),
    ("Power", "watt", of_devices("DCGM_FI_DEV_POWER_USAGE")),
    ("Temperature", "celsius", of_devices("DCGM_FI_DEV_GPU_TEMP")),
    ("Latest XID error", "none", of_devices("DCGM_FI_DEV_XID_ERRORS")),
]

DISAGGREGATION = [
    ("Workers in each state", "short",
     [(f"count by (status) ({own('sluice:router_worker_state')} == 1)", "{{status}}")]),
    ("Workers of each fingerprint", "short",
     level_by("sluice:router_fingerprint_workers", "fingerprint", "ready of") +
     [(f"sum by (fingerprint) ({own('sluice:router_worker_differs')})", "without new requests, of {{fingerprint}}")]),
    ("Share of new requests of each fingerprint", "percentunit",
     [(f"avg by (fingerprint) ({own('sluice:router_fingerprint_share')})", "{{fingerprint}}")]),
    ("Breakers: 0 closed, 1 half open, 2 open", "short",
     [(f"max by (worker) ({own('sluice:router_breaker_state')})", "{{worker}}")]),
    ("Requests of each worker", "short", level_by("sluice:router_worker_requests", "worker")),
    ("Usable workers and parked requests", "short",
     level_by("sluice:router_usable_workers", "instance", "usable of") +
     level("sluice:router_parked_requests", "parked")),
    ("Requests that went elsewhere, per second", "reqps",
     rate("sluice:router_retries_total", "sent again") +
     rate("sluice:router_continuations_total", "continued") +
     rate("sluice:router_lost_requests_total", "lost")),
    ("Tokens of prompts where they are cached", "percentunit",
     share("sluice:router_prefix_hits_total", "sluice:router_prefix_queries_total", "hits")),
    ("Split prompts per second", "reqps", rate("sluice:router_handoffs_total", "by routers") +
     rate("sluice_handoff_claims_total", "asked for")),
    ("Whole transfers per second", "reqps",
     rate_by("sluice_handoff_transfers_total", "instance, direction")),
    ("Bytes of KV per second", "Bps", rate_by("sluice_handoff_bytes_total", "instance, direction")),
    ("Blocks of KV per second", "short", rate_by("sluice_handoff_blocks_total", "direction")),
    ("Time of a transfer", "s", latency("vllm:nixl_xfer_time_seconds")),
    ("From arrival to the KV", "s", latency("sluice_handoff_wait_seconds")),
    ("Bytes of a transfer", "bytes", latency("vllm:nixl_bytes_transferred")),
    ("Prompts computed here all the same, per second", "reqps",
     rate_by("sluice_handoff_fallbacks_total", "reason")),
    ("Transfers of no use per second", "reqps",
     rate("vllm:nixl_num_failed_transfers_total", "failed") +
     rate("vllm:nixl_num_kv_expired_reqs_total", "not fetched")),
    ("Requests in each state", "short", level_by("sluice_handoff_requests", "state")),
    ("Blocks held for transfers", "short", level_by("sluice_handoff_held_blocks", "for")),
    ("Landing slots", "short", level("sluice_handoff_landing_slots", "all") +
     level("sluice_handoff_posted_slots", "posted")),
    ("Data planes", "short", level_by("sluice_handoff_sessions", "instance", "open of") +
     rate_by("sluice_handoff_closed_connections_total", "by", "closed per second by")),
    ("Pieces not taken per second", "short",
     rate_by("sluice_handoff_dropped_frames_total", "reason")),
    ("Time to first token", "s", latency("vllm:time_to_first_token_seconds")),
    ("Requests of each instance", "short", level_by("vllm:num_requests_running", "instance", "running on") +
     level_by("vllm:num_requests_waiting", "instance", "waiting on")),
]

SPECULATION = [
    ("Accepted share of drafted tokens", "percentunit",
     share("vllm:spec_decode_num_accepted_tokens_total",
           "vllm:spec_decode_num_draft_tokens_total", "accepted")),
    ("Accepted tokens of a draft", "short",
     share("vllm:spec_decode_num_accepted_tokens_total",
           "vllm:spec_decode_num_drafts_total", "mean")),
    ("Drafted tokens per second", "short",
     rate("vllm:spec_decode_num_draft_tokens_total", "drafted") +
     rate("vllm:spec_decode_num_accepted_tokens_total", "accepted") +
     rate("sluice_spec_draft_rows_padded_total", "not judged")),
    ("Accepted tokens per second by place in the draft", "short",
     rate_by("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position")),
    ("Drafts per second by source", "short", rate_by("sluice_spec_drafts_total", "source")),
    ("Accepted share by source", "percentunit",
     [(f"sum by (source) (rate({own('sluice_spec_accepted_tokens_total')}[$__rate_interval])) / "
       f"sum by (source) (rate({own('sluice_spec_draft_tokens_total')}[$__rate_interval]))",
       "{{source}}")]),
    ("Tokens of a draft", "short", latency("sluice_spec_depth")),
    ("Expected gain of a step", "short",
     [(f"{own('sluice_spec_gain_ratio')}", "{{instance}}")]),
    ("Steps without drafts per second, by reason", "short",
     rate_by("sluice_spec_off_steps_total", "reason")),
    ("Time spent on guessing", "percentunit",
     [(f"rate({own('sluice_spec_proposer_seconds_total')}[$__rate_interval])", "{{instance}}")]),
    ("Time between tokens", "s", latency("vllm:inter_token_latency_seconds")),
    STEP_TIME,
]

# File, title, panels.
DASHBOARDS = (("sluice", "Sluice", GENERAL), ("gpu", "Sluice: GPUs", GPU),
              ("disaggregation", "Sluice: routers and transfers of KV", DISAGGREGATION),
              ("speculation", "Sluice: speculation", SPECULATION))


def target(index, expression, legend):
    made = {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend}
    # Points that lead to traces.
    if "_seconds_bucket" in expression:
        made["exemplar"] = True
    return made


def panel(index, title, unit, queries):
    return {
        "id": index + 1,
        "title": title,
        "type": "timeseries",
        "datasource": SOURCE,
        "gridPos": {"x": index % 2 * 12, "y": index // 2 * 8, "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [target(i, *query) for i, query in enumerate(queries)],
    }


def variables():
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
              "refresh": 1, "current": {}}
    made = [source]
    for index, (name, label, title) in enumerate(CHOICES):
        query = f"label_values({own('vllm:num_requests_running', CHOICES[:index])}, {label})"
        made.append({"name": name, "label": title, "type": "query", "query": query, "definition": query,
                     "datasource": SOURCE, "refresh": 2, "multi": True, "includeAll": True,
                     "allValue": ".*", "current": {"text": "All", "value": "$__all"}})
    return made


def dashboard(name, title, panels):
    return {
        "uid": "sluice" if name == "sluice" else "sluice-" + name,
        "title": title,
        "tags": ["sluice"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "links": [{"type": "dashboards", "tags": ["sluice"], "title": "Sluice", "keepTime": True,
                   "includeVars": True, "asDropdown": False}],
        "templating": {"list": variables()},
        "panels": [panel(index, *row) for index, row in enumerate(panels)],
    }


def files():
    """Name to text."""
    return {f"{name}.json": json.dumps(dashboard(name, title, panels), indent=1) + "\n"
            for name, title, panels in DASHBOARDS}


if __name__ == "__main__":
    for name, text in files().items():
        (pathlib.Path(__file__).parent / name).write_text(text)
