#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A router finds its workers through a Kubernetes API server, here a small one of the test's own,
and prompts where workers say that they are cached.

usage: router_discovery_test.py BINARY MODEL
"""
import json
import os
import subprocess
import sys
import tempfile
import time

from kubernetes_api import TOKEN, Api
from router_cluster import SECRET, Process
from server_process import free_port, wait_until


def check_events(binary, model, folder):
    """A prompt that a worker has computed for somebody else goes to that worker."""
    ports, workers = [free_port() for _ in range(2)], []
    for port in ports:
        events = {"enable_kv_cache_events": True, "endpoint": f"tcp://*:{free_port()}"}
        workers.append(Process([binary, "serve", model, "--port", "0", "--threads", "1",
                                "--worker-listen", f"127.0.0.1:{port}",
                                "--kv-events-config", json.dumps(events)],
                               os.path.join(folder, f"events-{port}.log")))
    router = Process([binary, "router", "--port", "0", "--workers",
                      ",".join(f"127.0.0.1:{port}" for port in ports)],
                     os.path.join(folder, "events-router.log"))
    try:
        wait_until("two usable workers",
                   lambda: router.metric("sluice:router_usable_workers") == 2)
        time.sleep(1)  # a subscription takes a moment, and nothing says when it is there

        def ask(process, prompt):
            status, data = process.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})
            assert status == 200, data
        def goes_to_the_cached(number, seconds):
            prompt = [20 + (number * 37 + i * i) % 300 for i in range(100)]
            worker = workers[number % 2]
            ask(worker, prompt)
            time.sleep(seconds)  # nothing says when the router has heard of it
            cached = worker.metric("vllm:prefix_cache_hits_total")
            hits = router.metric("sluice:router_prefix_hits_total")
            ask(router, prompt)
            return (worker.metric("vllm:prefix_cache_hits_total") >= cached + 80
                    and router.metric("sluice:router_prefix_hits_total") >= hits + 80)

        late = [number for number in range(8) if not goes_to_the_cached(number, 0.5)]
        for number in late:  # other prompts, and more time
            assert goes_to_the_cached(number + 8, 5), late
    finally:
        for process in (router, *workers):
            process.process.kill()


def main():
    binary, model = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        check_events(binary, model, folder)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "token"), "w") as token:
            token.write(TOKEN + "\n")
        api = Api()
        ports = [free_port() for _ in range(2)]
        workers = [Process([binary, "serve", model, "--port", "0", "--threads", "1",
                            "--worker-listen", f"127.0.0.1:{port}"],
                           os.path.join(folder, f"worker-{port}.log")) for port in ports]
        api.put("first", ports[0], "127.0.0.1")
        os.environ["SLUICE_KUBERNETES_API"] = api.url
        os.environ["SLUICE_KUBERNETES_ACCOUNT"] = folder
        router = Process([binary, "router", "--workers", "k8s:space/service", "--port", "0"],
                         os.path.join(folder, "router.log"))
        try:
            def usable(count):
                wait_until(f"{count} usable workers; {router.log()}",
                           lambda: router.metric("sluice:router_usable_workers") == count)
            usable(1)
            api.put("second", ports[1], "127.0.0.1", kind="ADDED")
            usable(2)
            api.put("first", ports[0], "127.0.0.1", ready=False)
            usable(1)
            api.put("first", ports[0], "127.0.0.1", ready=True, terminating=True)
            usable(1)
            api.put("first", ports[0], "127.0.0.1", ready=True)
            usable(2)
            lists = api.lists
            api.forget()
            wait_until("a new list", lambda: api.lists > lists)
            api.put("second", ports[1], kind="DELETED")
            usable(1)
            # While the API server is away, what is known stays known.
            api.server.shutdown()
            api.server.server_close()
            time.sleep(2)
            assert router.metric("sluice:router_usable_workers") == 1
            assert api.refused == 0, "a request without the account's token, or for another service"
            router.process.terminate()
            assert router.process.wait(timeout=20) == 0, "a watch holds up the end"
            dry = subprocess.run([binary, "router", "--workers", "k8s:space/service:8100",
                                  "--dry-run"], capture_output=True, text=True, check=True)
            assert "k8s:space/service:8100" in dry.stdout, dry.stdout
            assert SECRET not in dry.stdout
        finally:
            for process in (router, *workers):
                process.process.kill()
    print("ok")


if __name__ == "__main__":
    main()
