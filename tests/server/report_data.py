# SPDX-License-Identifier: Apache-2.0
"""What `sluice bench serve --html` would write of requests that take a second each."""


def report_data(rows=30):
    """What `bench serve --html` writes into its page, of requests that take a second each."""
    metrics = [{"label": label, "header": header, "count": rows, "mean": 5.0, "median": 5.0, "std": 1.0,
                "min": 4.0, "max": 9.0, "percentiles": [["99", 8.0]]}
               for label, header in (("TTFT", "Time to First Token"), ("TPOT", "Time per Output Token"))]
    curves = [{"label": label, "points": [[10 * i, i] for i in range(1, 101)]}
              for label in ("TTFT", "TTFT, from the intended start", "E2E", "E2E, from the intended start")]
    sweep = [{"rate": rate, "sustained": bool(rate), "failed": 0, "requests": 9.0, "tokens": 90.0 * (rate or 12),
              "ttft": [31.0, 44.0], "tpot": 5.0, "e2el": [60.0, 90.0], "p": "99"} for rate in (None, 4.0, 8.0)]
    return {"model": "organisation/a-model-with-a-long-name-and-no-spaces-Q4_K_M", "date": "20261129-000000",
            "server": "http://127.0.0.1:8000/with/a/path", "dataset": "random", "load": "8 requests/s", "seed": 0,
            "duration": 30.0, "completed": rows, "failed": 0, "interrupted": False, "requests": 9.0,
            "tokens": 900.0, "inputTokens": 1000, "outputTokens": 1000, "peak": 8, "cpu": 0.1, "goodput": None,
            "withoutUsage": 0, "disagree": 0, "short": 0, "numRecords": rows, "metrics": metrics, "errors": [],
            "curves": curves, "sweep": sweep, "dots": [[30 + i, 200] for i in range(rows)],
            "bars": [[i, i, i + 0.3, i + 1, "none"] for i in range(rows)],
            "timeline": {"step": 0.5, **{name: [2.0] * 60 for name in ("tokens", "active", "waiting")},
                         "failed": [0] * 60}}
