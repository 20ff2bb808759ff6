#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A prefill and a decode worker as two processes, and between them a proxy that cuts, stalls, flips,
drops, repeats and slows down bytes of the control channel and of the data plane, by a seed; workers
are stopped, killed and started again meanwhile. Answers are those of one worker that computes alone,
and in the end no block is taken.

usage: handoff_proxy_test.py BINARY MODEL [--runs N] [--seed S]

A run is one request. What is printed of a run that fails, seed and plan, makes it likely to fail
again; which byte is whose depends on the processes' time too.
"""
import argparse
import collections
import contextlib
import http.client
import random
import signal
import threading
import time

from fault_proxy import Plan, Proxy, listening_ports
from handoff_pair import COMPLETIONS, Pair, body_of, essence, read_answer
from server_process import Server, run_checks, wait_until

TRANSFER_MS = 500
AT_ONCE = 3
# About as many bytes as go in a few transfers.
LINKS = {("control", "up"): 1500, ("control", "down"): 1500,
         ("data", "up"): 400, ("data", "down"): 120_000}
SAMPLINGS = ({"temperature": 0}, {"temperature": 0.8, "seed": 11})


class ProxiedPair(Pair):
    """What the decode worker knows of the prefill worker are the proxies."""

    def __init__(self, binary, model, alone):
        super().__init__(binary, model, "tcp", alone,
                         flags=("--kv-transfer-timeout-ms", str(TRANSFER_MS)))
        self.data = Proxy("data", lambda: self.data_port)
        self.control = Proxy("control", lambda: self.kv_ports["prefill"], self.rewrite)
        self.look_up()

    def look_up(self):
        """Where the prefill worker listens for those who fetch."""
        known = {self.prefill.port, self.kv_ports["prefill"]}
        (self.data_port,) = listening_ports(self.prefill.process) - known

    def rewrite(self, data):
        """Both ports have five digits."""
        return data.replace(b"127.0.0.1:%d" % self.data_port, b"127.0.0.1:%d" % self.data.port)

    def restart(self, role, how=signal.SIGKILL):
        super().restart(role, how)
        if role == "prefill":
            self.look_up()

    def address_for_decode(self):
        return "127.0.0.1", self.control.port

    def arm(self, plan):
        self.control.plan.over.set()
        self.data.plan = self.control.plan = plan


class Runs:
    def __init__(self, pair, seed):
        self.pair, self.seed = pair, seed
        self.outcomes = collections.Counter()
        self.faults = collections.Counter()

    def request(self, mode, path, body, results, number):
        """What the decode worker answers; or which worker did not, and why."""
        asked = "prefill" if mode == "serial" else "decode"
        try:
            if mode == "serial":
                params = self.pair.offer(path, body)
                asked = "decode"
                answer = read_answer(*self.pair.fetch(path, body, params))
            else:
                first, other, answers = self.pair.fetch_early(path, body)
                first.join(), other.join()
                answer = read_answer(*answers[0])
            results[number] = answer
        except (OSError, http.client.HTTPException, IndexError, AssertionError) as error:
            results[number] = (asked, repr(error))

    def batch(self, number, count):
        source = random.Random(f"{self.seed} {number}")
        pair = self.pair
        plan = Plan.draw(f"{self.seed} {number}", LINKS)
        process_fault = source.choice((None, None, None, None, "stop prefill", "stop decode",
                                       "kill prefill", "kill decode"))
        what = f"seed {self.seed}, batch {number}: {process_fault}, {plan}"
        if source.random() < 0.3:  # what they say first is in the plan's way too
            pair.control.cut_all()
            pair.data.cut_all()
        requests = [(source.choice(("serial", "concurrent")),
                     *body_of(COMPLETIONS, source.choice((90, 400, 900)), **source.choice(SAMPLINGS)))
                    for _ in range(count)]
        results = [None] * count
        pair.arm(plan)
        threads = [threading.Thread(target=self.request, args=(*request, results, i))
                   for i, request in enumerate(requests)]
        for thread in threads:
            thread.start()
        if process_fault:
            self.hurt(process_fault, source.choice((0.01, 0.05, 0.2)), source.choice((0.1, 0.9)))
        for thread in threads:
            thread.join()
        plan.over.set()
        for (mode, path, body), result in zip(requests, results):
            if isinstance(result, dict):
                expected = read_answer(*pair.alone.post(body, path))
                assert essence(result) == essence(expected), (what, mode, body, result, expected)
                self.outcomes["equal"] += 1
            else:
                # A killed worker answers no more; a client asks another one then.
                assert process_fault == f"kill {result[0]}", (what, mode, result)
                self.outcomes["no answer"] += 1
        self.faults.update(f"{link} {direction} {kind}" for (link, direction), kind in plan.fired())
        if process_fault:
            self.faults[process_fault] += 1
            if process_fault.startswith("kill"):
                pair.restart(process_fault.split()[1])

    def hurt(self, process_fault, after, seconds):
        how, role = process_fault.split()
        time.sleep(after)
        process = getattr(self.pair, role).process
        process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        if how == "stop":
            time.sleep(seconds)
            process.send_signal(signal.SIGCONT)

    def run(self, num_runs):
        number = 0
        while num_runs > 0:
            count = min(num_runs, AT_ONCE)
            self.batch(number, count)
            num_runs -= count
            number += 1
            if number % 8 == 0:
                self.expect_rest(number)
        self.expect_rest(number)
        print(f"{dict(self.outcomes)}; {dict(sorted(self.faults.items()))}", flush=True)

    def expect_rest(self, number):
        self.pair.arm(Plan())
        try:
            self.pair.expect_free()
        except AssertionError as error:
            states = [self.pair.state(worker) for worker in self.pair.workers()]
            raise AssertionError(f"seed {self.seed}, after batch {number}: {states}") from error


def check_runs(pair, num_runs, seed):
    runs = Runs(pair, seed)
    runs.run(num_runs)
    assert runs.outcomes["equal"] > num_runs // 2, runs.outcomes
    assert sum(runs.faults.values()) > 0, "nothing went wrong"


def check_undisturbed(pair):
    """What the proxies pass on is really fetched through them."""
    for mode in ("serial", "concurrent"):
        path, body = body_of(COMPLETIONS, 400, **SAMPLINGS[1])
        before = pair.decode.metric("sluice_handoff_bytes_total")
        plan = Plan()
        pair.arm(plan)
        results = [None]
        Runs(pair, 0).request(mode, path, body, results, 0)
        assert essence(results[0]) == essence(read_answer(*pair.alone.post(body, path))), results
        moved = pair.decode.metric("sluice_handoff_bytes_total") - before
        assert moved > 0, mode
        assert plan.counts[("data", "down")] > moved, (mode, plan.counts, moved)
        assert plan.counts[("control", "up")] > 0, plan.counts
    pair.expect_free()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--runs", type=int, default=36)
    parser.add_argument("--seed", default="1")
    args = parser.parse_args()
    alone = Server(args.binary, args.model, "--threads", "1", "--max-model-len", "2048")
    pair = ProxiedPair(args.binary, args.model, alone)
    try:
        run_checks(alone, [("undisturbed", lambda: check_undisturbed(pair)),
                           (f"{args.runs} runs", lambda: check_runs(pair, args.runs, args.seed)),
                           ("undisturbed again", lambda: check_undisturbed(pair))])
    finally:
        with contextlib.suppress(ProcessLookupError):
            pair.stop()


main()
