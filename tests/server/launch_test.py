#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One model over several processes that a launcher starts: they find each other by what it says in
the environment, and those above node 0 answer its probes.

usage: launch_test.py BINARY MODEL
"""
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading

from node_processes import FLAGS, SECRET, Follower, answers
from server_process import Server, free_port, wait_until

TWO = ["--tensor-parallel-size", "2"]


def launchers(port):
    """Of each launcher: flags and variables of a process, by its rank; and what its log then says."""
    flags = [*TWO, "--master-port", str(port)]
    return {
        "LeaderWorkerSet": lambda rank: (flags, {
            "LWS_LEADER_ADDRESS": "127.0.0.1", "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": str(rank)},
            f"node-rank {rank} from LWS_WORKER_INDEX, master-addr 127.0.0.1 from LWS_LEADER_ADDRESS"),
        "Slurm": lambda rank: (flags, {
            "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2", "SLURM_PROCID": str(rank),
            "SLURM_STEP_NODELIST": "127.0.0.[1-2]"},
            f"node-rank {rank} from SLURM_PROCID, master-addr 127.0.0.1 from SLURM_STEP_NODELIST"),
        "Open MPI": lambda rank: (flags, {
            "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            "master-addr 127.0.0.1 from OMPI_COMM_WORLD_LOCAL_SIZE"),
        "torchrun": lambda rank: (TWO, {
            "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            f"master-port {port} from MASTER_PORT"),
        "SGLang": lambda rank: (
            [*TWO, "--nnodes", "2", "--node-rank", str(rank), "--dist-init-addr", f"127.0.0.1:{port}"],
            {}, f"master-port {port} as given"),
        "vLLM": lambda rank: (
            [*flags, "--nnodes", "2", "--node-rank", str(rank), *(["--headless"] if rank else [])],
            {}, f"nnodes 2 as given, node-rank {rank} as given"),
    }


def check_launchers(binary, model, expected):
    """Processes that say nothing of their places but what their launcher says are a group."""
    for name, process_of in launchers(free_port()).items():
        flags, variables, words = process_of(1)
        follower = Follower(binary, model, *SECRET, *flags, variables=variables)
        try:
            flags, variables, leaders_words = process_of(0)
            leader = Server(binary, model, *flags, *FLAGS, *SECRET, variables=variables)
            assert answers(leader) == expected, name
            assert leader.stop() == 0
            code, log = follower.end()
            assert code == 0 and words in log, (name, code, log)
            log = leader.whole_log()
            assert leaders_words in log, (name, log)
        finally:
            follower.process.kill()
        print(f"ok {name}", flush=True)


def check_refusals(binary, model):
    # Launchers that disagree stop a process that asks for several ranks, and no other.
    apart = {**launchers(1)["Slurm"](1)[1], **launchers(1)["torchrun"](0)[1]}
    for flags, variables, words, code in [
            (TWO, apart, "SLURM_PROCID is 1, RANK is 0: they contradict each other", 2),
            ([], apart, "this process has the whole model: --tensor-parallel-size is 1", 0),
            (TWO, {"RANK": "1"}, "", 0),
            (["--headless"], {}, "--headless: found on node 0, which answers requests", 2),
            (["--dist-init-addr", "a:1", "--master-addr", "b"], {},
             "--dist-init-addr is a:1 and --master-addr is b; give one of the two", 2),
            (["--dist-init-addr", "a"], {}, '--dist-init-addr must be host:port, got "a"', 2)]:
        done = subprocess.run([binary, "serve", model, *FLAGS, *flags, "--dry-run"], capture_output=True,
                              text=True, check=False, timeout=60, env={**os.environ, **variables})
        assert done.returncode == code and words in done.stderr, (flags, variables, done)
    print("ok refusals", flush=True)


def get(port, path, method="GET"):
    """Status and body; none: nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    except OSError:
        return None
    finally:
        connection.close()


def check_probes(binary, model):
    """A follower is well from when it computes, and gone with its group."""
    port, master = free_port(), free_port()
    place = [*TWO, "--nnodes", "2", "--master-port", str(master)]
    follower = Follower(binary, model, *SECRET, *place, "--node-rank", "1", port=port)
    try:
        wait_until("it answers", lambda: get(port, "/version"))
        for path in ("/health", "/ready", "/ping"):
            status, body = get(port, path)
            assert status == 503 and "have not met" in body, (path, status, body)
        leader = Server(binary, model, *place, *FLAGS, *SECRET)
        for path in ("/health", "/ready", "/ping", "/version", "/metrics"):
            assert get(port, path)[0] == 200, path
        assert "sluice_build_info" in get(port, "/metrics")[1]
        for path, method in (("/v1/completions", "POST"), ("/v1/models", "GET"), ("/debug/state", "GET")):
            assert get(port, path, method)[0] == 404, path
        with socket.create_connection(("127.0.0.1", port)) as silent:
            silent.sendall(b"GET /health HTTP/1.1\r\n")  # does not hold up the end
            leader.process.kill()
            code, log = follower.end()
            assert code == 1 and "rank 0 at 127.0.0.1:" in log, (code, log)
        assert get(port, "/health") is None
    finally:
        follower.process.kill()
    print("ok probes", flush=True)


def check_taken_port(binary, model, expected):
    """Nodes of one machine with the same --port: the first has the probes, the others do without."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port, place = other.getsockname()[1], [*TWO, "--nnodes", "2", "--master-port", str(free_port())]
        follower = Follower(binary, model, *SECRET, *place, "--node-rank", "1", port=port)
        try:
            leader = Server(binary, model, *place, *FLAGS, *SECRET)
            assert answers(leader) == expected
            assert leader.stop() == 0
            code, log = follower.end()
            assert code == 0 and "no_probes" in log and str(port) in log, (code, log)
        finally:
            follower.process.kill()
    print("ok taken port", flush=True)


class At:
    """A server that another process has started."""
    post = Server.post

    def __init__(self, port):
        self.port = port
        self.model = json.loads(get(port, "/v1/models")[1])["data"][0]["id"]


# What srun does with the tasks of a step: starts them, hands SIGTERM on, and ends with the worst.
SRUN = '''#!/usr/bin/env python3
import os, signal, subprocess, sys
command = [word for word in sys.argv[1:] if not word.startswith("--kill-on-bad-exit")]
tasks = [subprocess.Popen(command, env={**os.environ, "SLURM_STEP_NUM_TASKS": os.environ["SLURM_NNODES"],
                                        "SLURM_STEP_NUM_NODES": os.environ["SLURM_NNODES"],
                                        "SLURM_STEP_NODELIST": "127.0.0.[1-2]", "SLURM_PROCID": str(rank)})
         for rank in range(int(os.environ["SLURM_NNODES"]))]
signal.signal(signal.SIGTERM, lambda *_: [task.send_signal(signal.SIGTERM) for task in tasks])
sys.exit(max(abs(task.wait()) for task in tasks))
'''


def check_sbatch(binary, model, expected):
    """The script for Slurm checks its nodes and serves on the first one; SIGTERM ends all in order."""
    script = pathlib.Path(__file__).parents[2] / "deploy/sluice.sbatch"
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "sluice").symlink_to(os.path.abspath(binary))
        srun = pathlib.Path(folder) / "srun"
        srun.write_text(SRUN)
        srun.chmod(0o755)
        job = subprocess.Popen(
            ["bash", script, os.path.abspath(model), "--host", "127.0.0.1", "--port", "0", *FLAGS],
            env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_NNODES": "2",
                 "SLUICE_MASTER_PORT": str(free_port())},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        log = []
        reader = threading.Thread(target=log.extend, args=(job.stdout,), daemon=True)
        reader.start()
        try:
            wait_until("it serves", lambda: job.poll() is not None
                       or any(line.startswith("serving ") for line in log), 60)
            assert job.poll() is None, log
            assert "found, by name\n" in log, log
            port = next(line.split("http://127.0.0.1:")[1].split()[0] for line in log
                        if line.startswith("serving "))
            assert answers(At(int(port))) == expected
            job.send_signal(signal.SIGTERM)
            assert job.wait(60) == 0, log
        finally:
            job.kill()
        srun.write_text("#!/bin/sh\nenv\n")
        for flags, variables, shares in [([], {}, "4"), (["--pipeline-parallel-size", "4"], {}, None),
                                         (["--tensor-parallel-size=2"], {}, None),
                                         ([], {"SLUICE_PIPELINE_PARALLEL_SIZE": "4"}, None)]:
            said = subprocess.run(["bash", script, "model.gguf", *flags], env={
                "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_NNODES": "4", **variables},
                capture_output=True, text=True, check=True).stdout
            assert ([f"SLUICE_TENSOR_PARALLEL_SIZE={shares}"] * 2 if shares else []) == [
                line for line in said.splitlines() if "TENSOR" in line], said
    print("ok sbatch", flush=True)


def main():
    binary, model = sys.argv[1:3]
    one = Server(binary, model, *FLAGS)
    expected = answers(one)
    assert one.stop() == 0
    assert all(status == 200 for status, *_ in expected), json.dumps(expected)
    check_launchers(binary, model, expected)
    check_refusals(binary, model)
    check_probes(binary, model)
    check_taken_port(binary, model, expected)
    check_sbatch(binary, model, expected)


if __name__ == "__main__":
    main()
