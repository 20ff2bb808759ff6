#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/quickstart.sh with programs of paper: what it configures on which machine, what it leaves
out at the second run, what runs beside the build, and how it ends when something fails or stops it."""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests/server"))
from server_process import free_port

# Each writes a line into $CALLS.
PAPER = {
    "bin/cmake": """
echo "cmake $*" >>"$CALLS"
mkdir -p build
""",
    "bin/ninja": """
if [[ " $* " == *" -n "* ]]; then
  if [[ build/sluice -nt source ]]; then echo "ninja: no work to do."; else echo "[1/2] a"; fi
  exit 0
fi
echo "ninja $*" >>"$CALLS"
echo "${NINJA_STATUS//%f/1}a" | sed 's/%t/2/'
for _ in $(seq 100); do [[ -z "${WAITS_FOR:-}" || -e "$WAITS_FOR" ]] && break; sleep 0.1; done
if [[ -n "${PAPER_ERROR:-}" ]]; then echo "FAILED: b.o"; echo "$PAPER_ERROR"; exit 1; fi
if [[ -n "${PAPER_ENDLESS:-}" ]]; then touch building; exec sleep 60; fi
cp paper_server.py build/sluice
echo "${NINJA_STATUS//%f/2}b" | sed 's/%t/2/'
""",
    "bin/nvidia-smi": """
if [[ -z "${PAPER_GPU:-}" ]]; then echo "No devices were found"; exit 6; fi
echo "$PAPER_GPU"
""",
    "deploy/install_packages.sh": """
echo "packages $*" >>"$CALLS"
""",
    "deploy/fetch_model.sh": """
echo "fetch" >>"$CALLS"
touch fetching
if [[ -n "${PAPER_FETCH:-}" ]]; then echo "no such host" >&2; exit "$PAPER_FETCH"; fi
echo "/models/paper.gguf"
""",
}

SERVER = '''#!/usr/bin/env python3
import http.server, json, os, signal, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
with open(os.environ["CALLS"], "a") as calls:
    calls.write("sluice " + " ".join(sys.argv[1:]) + "\\n")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(json.dumps({"data": [{"id": "paper"}]}))
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        words = ["A gate ", "of paper."]
        events = [json.dumps({"choices": [{"delta": {"content": word}}]}) for word in words]
        self.answer("".join(f"data: {event}\\n\\n" for event in events + ["[DONE]"]))
    def answer(self, text):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *arguments):
        pass
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
server = http.server.HTTPServer(("127.0.0.1", port), Handler)
print("serving paper", flush=True)
server.serve_forever()
'''


def processes_in(folder):
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd") == str(folder):
                found.append(process.name)
        except OSError:  # gone, or another user's
            pass
    return found


class QuickStart(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name, body in PAPER.items():
            self.write(name, "#!/usr/bin/env bash\n" + body)
        for name in ("deploy/quickstart.sh", "deploy/ask.py", "CMakePresets.json"):
            shutil.copy(REPOSITORY / name, self.root / name)
        self.write("paper_server.py", SERVER)
        self.write("source", "int main;\n")
        os.utime(self.root / "source", (1, 1))
        self.calls = self.root / "calls"
        self.port = free_port()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def start(self, *arguments, **environment):
        self.calls.write_text("")
        variables = {"PATH": f"{self.root}/bin:/usr/bin:/bin", "HOME": str(self.root),
                     "CALLS": str(self.calls), "SLUICE_PORT": str(self.port), **environment}
        return subprocess.Popen(["bash", self.root / "deploy/quickstart.sh", *arguments],
                                env=variables, cwd=self.root, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT)

    def run_once(self, *arguments, code=0, **environment):
        script = self.start("--once", *arguments, **environment)
        output, _ = script.communicate(timeout=60)
        self.assertEqual(script.returncode, code, output)
        return output

    def called(self, program):
        return [line for line in self.calls.read_text().splitlines() if line.startswith(program)]

    def test_the_first_run_does_everything_and_the_second_only_asks(self):
        output = self.run_once(WAITS_FOR=f"{self.root}/fetching")  # the build ends only beside it
        self.assertIn("A gate of paper.", output)
        self.assertIn("2 of 2 steps", output)
        self.assertEqual(self.called("cmake"), ["cmake --preset serve -DSLUICE_CUDA=OFF"])
        self.assertEqual(self.called("packages"), ["packages --only"])
        self.assertEqual(len(self.called("fetch")), 1)
        self.assertIn("serve /models/paper.gguf", self.called("sluice")[0])
        self.assertIn("--device cpu", self.called("sluice")[0])

        begin = time.monotonic()
        output = self.run_once()
        self.assertLess(time.monotonic() - begin, 60)
        self.assertIn("A gate of paper.", output)
        self.assertEqual(self.called("cmake") + self.called("packages") + self.called("ninja"), [])

    def test_what_has_changed_is_built_again(self):
        self.run_once()
        os.utime(self.root / "source")
        time.sleep(0.05)
        os.utime(self.root / "build/sluice", (2, 2))
        self.run_once()
        self.assertEqual(len(self.called("ninja")), 1)
        with open(self.root / "CMakePresets.json", "a", encoding="utf-8") as presets:
            presets.write("\n")
        self.run_once()
        self.assertEqual(len(self.called("cmake")), 1)

    def test_kernels_are_compiled_where_a_gpu_is(self):
        self.write("bin/nvcc", "#!/bin/sh\n")
        output = self.run_once(PAPER_GPU="NVIDIA H200, 9.0")
        self.assertEqual(self.called("cmake"), ["cmake --preset serve -DSLUICE_CUDA=ON"])
        self.assertIn("GPU: NVIDIA H200. Building for it, and serving on it.", output)
        self.assertIn("--device auto", self.called("sluice")[0])

    def test_a_gpu_that_was_never_tried_is_named_and_asked_for(self):
        self.write("bin/nvcc", "#!/bin/sh\n")
        output = self.run_once(PAPER_GPU="NVIDIA A100, 8.0")
        self.assertEqual(self.called("cmake"), ["cmake --preset serve -DSLUICE_CUDA=OFF"])
        self.assertIn("NVIDIA A100", output)
        self.assertIn("--device cpu", self.called("sluice")[0])
        self.run_once("--cuda", PAPER_GPU="NVIDIA A100, 8.0")
        self.assertEqual(self.called("cmake"), [
            "cmake --preset serve -DSLUICE_CUDA=ON -DSLUICE_CUDA_ARCHITECTURES=80"])
        self.assertIn("--device auto", self.called("sluice")[0])

    def test_cuda_without_a_gpu_builds_and_serves_on_the_cpu(self):
        self.run_once("--cuda")
        self.assertEqual(self.called("cmake"), ["cmake --preset serve -DSLUICE_CUDA=ON"])
        self.assertIn("--device cpu", self.called("sluice")[0])

    def test_an_interrupted_build_leaves_nothing_and_goes_on(self):
        script = self.start("--once", PAPER_ENDLESS="1")
        for _ in range(1200):
            if (self.root / "building").exists():
                break
            time.sleep(0.05)
        script.send_signal(signal.SIGINT)
        output, _ = script.communicate(timeout=60)
        self.assertEqual(script.returncode, 130, output)
        self.assertIn("the next run goes on", output)
        for _ in range(1200):
            if not processes_in(self.root):
                break
            time.sleep(0.05)
        self.assertEqual(processes_in(self.root), [])
        self.assertIn("A gate of paper.", self.run_once())

    def test_a_failed_build_shows_the_compilers_message(self):
        output = self.run_once(code=1, PAPER_ERROR="b.cpp:1: error: it is made of paper")
        self.assertIn("b.cpp:1: error: it is made of paper", output)
        self.assertIn("step 'build' failed", output)

    def test_without_a_network_the_tiny_model_is_served(self):
        output = self.run_once(PAPER_FETCH="3")
        self.assertIn("could not be downloaded", output)
        self.assertIn("serve tests/golden/tiny/tiny-llama.gguf", self.called("sluice")[0])
        output = self.run_once(code=1, PAPER_FETCH="1")
        self.assertIn("step 'model' failed", output)

    def test_a_stop_ends_the_server(self):
        script = self.start()
        for line in script.stdout:
            if "until Ctrl-C" in line:
                break
        script.send_signal(signal.SIGTERM)
        script.communicate(timeout=60)
        with self.assertRaises(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            pass

    def test_an_unknown_argument_is_wrong_use(self):
        script = self.start("--onec")
        output, _ = script.communicate(timeout=60)
        self.assertEqual(script.returncode, 2)
        self.assertIn("usage:", output)


if __name__ == "__main__":
    unittest.main()
