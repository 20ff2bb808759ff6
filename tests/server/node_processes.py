# SPDX-License-Identifier: Apache-2.0
"""What the tests of one model over several processes share: its processes, and what requests get."""
import atexit
import concurrent.futures
import http.client
import json
import os
import subprocess
import threading

from server_process import PATIENCE_S, Server, free_port

FLAGS = ["--kv-cache-memory", "8MiB", "--threads", "1", "--max-num-seqs", "8"]
SECRET = ["--worker-secret", "a secret of this test"]
RANKS = "--tensor-parallel-size"  # how nodes share a model: each layer,
STAGES = "--pipeline-parallel-size"  # or some layers each,
BOTH = "both"  # or in two stages the layers of each
PROMPTS = ["Hello there", "1 2 3 4 5 6 7 8 9 10 11 12", "The quick brown fox jumps over the lazy dog " * 8,
           "x"]


def shares(by, size):
    spread = [STAGES, "2", RANKS, str(size // 2)] if by == BOTH else [by, str(size)]
    return ["--nnodes", str(size), *spread]


class Follower:
    """A process above node 0, or another of which the log is read; `place`: what finds its group."""

    def __init__(self, binary, model, *place, port=0, variables=()):
        self.process = subprocess.Popen(
            [binary, "serve", model, "--port", str(port), *FLAGS, *place],
            env={**os.environ, **dict(variables)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True)
        atexit.register(self.process.kill)  # whatever fails
        self.log = []
        self.reader = threading.Thread(target=self.log.extend, args=(self.process.stdout,), daemon=True)
        self.reader.start()

    def end(self, seconds=PATIENCE_S):
        code = self.process.wait(seconds)
        return code, self.whole_log()

    def whole_log(self):
        """What it has said, once it has ended."""
        self.reader.join(PATIENCE_S)
        return "".join(self.log)

    def kill(self):
        self.process.kill()
        self.process.wait()


class Nodes:
    """A model over `size` processes; `dialled`: the port that followers dial; `follower`: the program
    that they are, if not `binary`."""

    def __init__(self, binary, model, size, flags=(), dialled=None, follower=None, by=RANKS):
        self.port = free_port()
        at = str(dialled(self.port) if dialled else self.port)
        self.followers = [
            Follower(follower or binary, model, "--node-rank", str(rank), *shares(by, size),
                     "--master-port", at, *SECRET, *flags)
            for rank in range(1, size)]
        try:
            self.leader = Server(binary, model, *shares(by, size), "--master-port", str(self.port), *FLAGS,
                                 *SECRET, *flags)
        except BaseException:
            self.kill_followers()
            raise

    def kill_followers(self):
        for follower in self.followers:
            follower.kill()

    def kill(self):
        self.leader.process.kill()
        self.leader.process.wait()
        self.kill_followers()


def answers(server, may_end=False):
    """What concurrent requests of several kinds get, without what depends on the process. `may_end`: the
    server may be gone before it takes a request, which then has status 0."""
    def ask(i):
        body = {"prompt": PROMPTS[i % len(PROMPTS)], "max_tokens": 24, "logprobs": 3, "seed": i,
                "temperature": 0 if i % 2 else 0.9, "ignore_eos": True, "echo": i % 3 == 0}
        if i % 4 == 2:
            body["structured_outputs"] = {"regex": "[a-c ]{10,40}"}
        try:
            connection, response = server.post(body)
            answer = json.loads(response.read())
        except (OSError, http.client.HTTPException):
            if not may_end:
                raise
            return 0, None, None
        connection.close()
        return response.status, answer.get("choices"), answer.get("system_fingerprint")

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(pool.map(ask, range(12)))
