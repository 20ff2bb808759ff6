#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the image with buildah, no daemon needed, and runs it as a cluster would: as PID 1 of its own
namespaces, on a read-only root, without root's rights, under a CPU quota. Prints the figures of the
image and exits with 0 if all checks hold, with 77 where it cannot run.

    sudo python3 deploy/image_test.py [--model FILE.gguf] [--root FOLDER | --binary FILE] [--quick]

--root checks a root folder laid out already (deploy/image_root.py) instead of building the image. --binary
lays one out from this program, of which buildah, where it is installed, makes the image: the Dockerfile
without its build stage. --quick leaves out buildah and what is measured.
"""
import argparse
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "sluice"
DEBOOTSTRAP_BASE = "localhost/sluice-debootstrap"
IMAGE = "localhost/sluice"
MEGABYTE = 1_000_000
LARGEST_IMAGE = 60 * MEGABYTE
LARGEST_WITH_CUDA = 1000 * MEGABYTE
SMALLEST_SHARE_UNDER_QUOTA = 0.6
USER = "10001"
ANY_USER = "65532"  # whom a cluster may choose instead
SKIPPED = 77
LONGEST_COMMAND = 300  # seconds

failures = []


def check(holds, what):
    print(f"{'ok  ' if holds else 'FAIL'} {what}", flush=True)
    if not holds:
        failures.append(what)


def skip(why):
    print(f"image_test.py: skipped: {why}")
    sys.exit(SKIPPED)


def run(*command, **keywords):
    return subprocess.run([str(part) for part in command], check=True, text=True, **keywords)


def install_tools():
    if os.geteuid() != 0:
        skip("needs root, for namespaces and mounts")
    missing = [tool for tool in ("buildah", "debootstrap") if shutil.which(tool) is None]
    if not missing:
        return
    if shutil.which("apt-get") is None:
        skip(f"{missing} are not installed")
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    try:
        run("apt-get", "-q", "update", env=environment)
        run("apt-get", "-q", "install", "-y", "--no-install-recommends", *missing, env=environment)
    except subprocess.CalledProcessError:
        skip(f"{missing} cannot be installed")


def base_of_dockerfile():
    text = (REPOSITORY / "deploy/Dockerfile").read_text()
    return re.search(r"^ARG BASE=(\S+)$", text, re.MULTILINE).group(1)


class Buildah:
    """Storage of its own, so that nothing of the machine's other images is touched."""

    def __init__(self):
        CACHE.mkdir(parents=True, exist_ok=True)
        self.command = ["buildah", "--storage-driver", "vfs", "--root", str(CACHE / "images"),
                        "--runroot", str(CACHE / "images-run")]
        self.environment = dict(os.environ, BUILDAH_ISOLATION="chroot", STORAGE_DRIVER="vfs")

    def __call__(self, *arguments, **keywords):
        return run(*self.command, *arguments, env=self.environment, **keywords)

    def output(self, *arguments):
        return self(*arguments, capture_output=True).stdout.strip()

    def has(self, image):
        found = subprocess.run(self.command + ["inspect", "--type", "image", image], check=False,
                               env=self.environment, capture_output=True)
        return found.returncode == 0

    def base(self):
        """The registry's image, or where no registry is reached one from the package mirror."""
        base = base_of_dockerfile()
        for image in (base, DEBOOTSTRAP_BASE):
            if self.has(image):
                return image
        with contextlib.suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired):
            self("pull", base, timeout=120)
            return base
        folder = CACHE / "debootstrap"
        shutil.rmtree(folder, ignore_errors=True)
        run("debootstrap", "--variant=minbase", "bookworm", folder, stdout=subprocess.DEVNULL)
        archive = CACHE / "debootstrap.tar"
        run("tar", "-C", folder, "-cf", archive, ".")
        container = self.output("from", "scratch")
        self("add", "-q", container, archive, "/", stdout=subprocess.DEVNULL)
        self("config", "--cmd", "/bin/bash", container)
        self("commit", "-q", "--rm", container, DEBOOTSTRAP_BASE)
        archive.unlink()
        shutil.rmtree(folder)
        return DEBOOTSTRAP_BASE

    def build(self, *arguments):
        revision = subprocess.run(["git", "-C", REPOSITORY, "rev-parse", "HEAD"], check=False,
                                  capture_output=True, text=True).stdout.strip() or "unknown"
        deploy = REPOSITORY / "deploy"
        self("build", "--format", "docker", "-t", IMAGE, "-f", deploy / "Dockerfile",
             "--ignorefile", deploy / "Dockerfile.dockerignore", "--build-arg",
             f"REVISION={revision}", *arguments, REPOSITORY)

    def check_configuration(self):
        described = json.loads(self.output("inspect", "--type", "image", IMAGE))
        config = described["Docker"]["config"]
        check(config["User"] == f"{USER}:{USER}", "the image's user is a number and not root")
        check(config["Healthcheck"]["Test"] == ["CMD", "/usr/bin/sluice", "health"],
              "HEALTHCHECK runs the program itself")
        check(config["Entrypoint"] == ["/usr/bin/sluice"], "ENTRYPOINT is the program")
        check(config["StopSignal"] == "SIGTERM", "a stop is a SIGTERM")
        labels = {f"org.opencontainers.image.{name}"
                  for name in ("title", "version", "revision", "licenses")}
        check(labels <= set(config["Labels"]), "OCI labels are there")


def check_contents(root):
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    size = sum(path.stat().st_size for path in files)
    print(f"image: {size / MEGABYTE:.1f} MB uncompressed in {len(files)} files")
    has_cuda = b".nv_fatbin" in (root / "usr/bin/sluice").read_bytes()
    largest = LARGEST_WITH_CUDA if has_cuda else LARGEST_IMAGE
    check(size <= largest, f"the image {'with' if has_cuda else 'without'} CUDA has at most "
          f"{largest // MEGABYTE} MB")
    programs = {path.name for path in (root / "usr/bin").iterdir()}
    check(programs == {"sluice", "vllm"}, f"no shell and no other program: {sorted(programs)}")
    setuid = [path for path in files if path.stat().st_mode & 0o6000]
    check(not setuid, "nothing changes the user that runs it")
    bill = json.loads((root / "usr/share/sbom/sluice.spdx.json").read_text())
    check(bill["spdxVersion"] == "SPDX-2.3" and
          {"sluice", "libc6", "libstdc++6"} <= {package["name"] for package in bill["packages"]},
          f"the bill of materials lists {len(bill['packages'])} packages")
    without = [package["name"] for package in bill["packages"] if package["name"] != "sluice"
               and not any((root / "usr/share/doc" / package["name"]).iterdir())]
    check("xgrammar" in {package["name"] for package in bill["packages"]} and not without,
          "every package has its licence in the image, what is compiled in as well")


class ControlGroup:
    """A group with limits, in version 1 or 2; `why_not` says why there is none."""

    def __init__(self, cpus=None, memory=None):
        self.folders = []
        self.why_not = None
        mount = pathlib.Path("/sys/fs/cgroup")
        name = f"sluice-image-test-{os.getpid()}"
        try:
            if (mount / "cgroup.controllers").exists():
                self._make(mount / name, {"cpu.max": cpus and f"{int(cpus * 100000)} 100000",
                                          "memory.max": memory})
            else:
                if cpus:
                    self._make(mount / "cpu" / name, {"cpu.cfs_period_us": 100000,
                                                      "cpu.cfs_quota_us": int(cpus * 100000)})
                if memory:
                    own = re.search(r":memory:(.*)", pathlib.Path("/proc/self/cgroup").read_text())
                    self._make(mount / "memory" / own.group(1).strip("/") / name,
                               {"memory.limit_in_bytes": memory})
        except (OSError, AttributeError) as error:
            self.why_not = str(error)

    def _make(self, folder, values):
        folder.mkdir()
        self.folders.append(folder)
        for name, value in values.items():
            if value:
                (folder / name).write_text(str(value))

    def enter(self):
        """In a child, before it becomes the program."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for folder in self.folders:
            for _ in range(50):  # until the last process in it is gone
                try:
                    folder.rmdir()
                    break
                except OSError:
                    time.sleep(0.1)


# The mounts that a container runtime makes, then the program takes the shell's place as PID 1.
INSIDE = r"""
set -e
root="$1"; model="$2"; user="$3"; shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t tmpfs tmpfs "$root/tmp"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount --bind "$model" "$root/models"
mount -o remount,bind,ro "$root/models"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
exec env -i PATH=/usr/bin HOME=/home/sluice SLUICE_HOST=127.0.0.1 \
  setpriv --no-new-privs unshare --root="$root" --wd=/home/sluice --setuid="$user" --setgid="$user" "$@"
"""


def first_process_of(unshare):
    """On the host's side, of the process that is PID 1 inside; with it ends the namespace."""
    children = f"/proc/{unshare.pid}/task/{unshare.pid}/children"
    return int(pathlib.Path(children).read_text().split()[0])


class Container:
    def __init__(self, root, model):
        self.root = root
        self.model = model
        self.inside_model = f"/models/{model.name}"

    def start(self, *command, group=None, user=USER, **keywords):
        return subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "bash", "-c", INSIDE,
             "container", str(self.root), str(self.model.parent), user, *command],
            text=True, preexec_fn=group.enter if group else None, **keywords)

    def output(self, *command, group=None):
        process = self.start(*command, group=group, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT)
        try:
            text = process.communicate(timeout=LONGEST_COMMAND)[0]
        except subprocess.TimeoutExpired:
            os.kill(first_process_of(process), signal.SIGKILL)
            return None, process.communicate()[0]
        return process.returncode, text


class Server:
    """`sluice serve` in the container."""

    def __init__(self, container, *flags, group=None, user=USER,
                 command=("/usr/bin/sluice", "serve")):
        self.container = container
        self.started = time.monotonic()
        self.process = container.start(*command, container.inside_model, "--port", "0", *flags,
                                       group=group, user=user, stdout=subprocess.PIPE)
        self.port = None
        for line in self.process.stdout:
            found = re.match(r"serving .* on http://[^ ]*:(\d+) ", line)
            if found:
                self.port = int(found.group(1))
                break
        self.ready_seconds = time.monotonic() - self.started
        if self.port is None:
            raise RuntimeError(f"the server did not start, code {self.process.wait()}")

    @property
    def pid(self):
        return first_process_of(self.process)

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", path)
        return connection.getresponse().status

    def stream(self, tokens):
        """The parts of one streamed answer, as they come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        body = json.dumps({"prompt": "Once upon a time", "max_tokens": tokens, "stream": True,
                           "ignore_eos": True, "temperature": 0})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {response.read()[:200]}")
        for line in response:
            if line.startswith(b"data: "):
                yield line[6:].strip().decode()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.kill(self.pid, signal.SIGKILL)  # with it ends the namespace
        self.process.wait()
        self.process.stdout.close()


def status_of(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def check_user(server, user):
    status = status_of(server.pid)
    check(status["Uid"].split() == [user] * 4, f"it runs as user {user}, who is not root")
    check(int(status["CapEff"], 16) == 0 and status["NoNewPrivs"] == "1",
          "it has no capability and can gain none")
    mounts = pathlib.Path(f"/proc/{server.pid}/mountinfo").read_text().splitlines()
    whole = [line.split()[5] for line in mounts if line.split()[4] == "/"]
    check(bool(whole) and whole[-1].split(",")[0] == "ro", "its root is read-only")
    parts = list(server.stream(4))
    check(parts[-1] == "[DONE]", "it answers")


def check_confinement(server):
    status = status_of(server.pid)
    check(status["NSpid"].split()[-1] == "1", "the program is PID 1")
    check_user(server, USER)

    healthy = subprocess.run(
        ["nsenter", "--target", str(server.pid), "--mount", "--pid", "--root", "--setuid", USER,
         "--setgid", USER, "/usr/bin/sluice", "health"], check=False, stdout=subprocess.DEVNULL,
        env=dict(os.environ, SLUICE_PORT=str(server.port))).returncode
    check(healthy == 0 and server.get("/health") == 200, "HEALTHCHECK's command says healthy")

    # A process whose parent ends becomes a child of PID 1, which has to reap it.
    subprocess.run(["nsenter", "--pid", "--target", str(server.pid), "sh", "-c",
                    "(sleep 0.3 &) ; exit 0"], check=True)
    time.sleep(1)
    zombies = [line for line in subprocess.run(
        ["ps", "-o", "stat=", "--ppid", str(server.pid)], check=False, capture_output=True,
        text=True).stdout.splitlines() if line.startswith("Z")]
    check(not zombies, "orphans are reaped")


def check_drain(container):
    with Server(container) as server:
        parts = []
        for part in server.stream(200):
            if not parts:
                os.kill(server.pid, signal.SIGTERM)
            parts.append(part)
        code = server.process.wait(timeout=60)
    finish = json.loads(parts[-2])["choices"][0]["finish_reason"] if len(parts) > 1 else None
    check(parts[-1] == "[DONE]" and finish == "length",
          f"SIGTERM in mid-stream: the stream ends whole ({len(parts)} events)")
    check(code == 0, f"and the exit code is 0 (it is {code})")


def measure_layer(root):
    archive = subprocess.Popen(["tar", "-C", str(root), "-cf", "-", "."], stdout=subprocess.PIPE)
    layer = subprocess.run(["gzip", "-6"], stdin=archive.stdout, capture_output=True, check=True)
    archive.wait()
    print(f"as a compressed layer: {len(layer.stdout) / MEGABYTE:.1f} MB")


def measure_start(container, rounds=5):
    ready, first = [], []
    for _ in range(rounds):
        with Server(container) as server:
            next(server.stream(4))
            first.append(time.monotonic() - server.started)
            ready.append(server.ready_seconds)
    print(f"exec to ready: {statistics.median(ready) * 1000:.0f} ms, exec to first token: "
          f"{statistics.median(first) * 1000:.0f} ms (medians of {rounds})")


def check_limits(container):
    cpus = len(os.sched_getaffinity(0))
    with ControlGroup(cpus=0.5) as group:
        if group.why_not:
            print(f"skip CPU quota: no control group can be made here: {group.why_not}")
        else:
            counts = []
            for used in (None, group):
                with Server(container, group=used) as server:
                    counts.append(int(status_of(server.pid)["Threads"]))
            check(cpus == 1 or counts[1] < counts[0],
                  f"half a CPU means fewer threads ({counts[1]}) than {cpus} CPUs ({counts[0]})")
    memory = 700 * 1024 * 1024
    with ControlGroup(memory=memory) as group:
        if group.why_not:
            print(f"skip memory limit: no control group can be made here: {group.why_not}")
            return
        code, text = container.output("/usr/bin/sluice", "serve", container.inside_model,
                                      "--dry-run", group=group)
        numbers = [int(number) for number in re.findall(r"(\d+) bytes", text)]
        check(code == 0 and numbers and max(numbers) <= memory,
              f"a memory limit of {memory >> 20} MiB bounds the plan")


def decode_rate(container, group):
    """Tokens a second that 4 streams get together."""
    code, text = container.output("/usr/bin/sluice", "bench", container.inside_model, "--prefill",
                                  "64", "--concurrency", "4", "--rounds", "3", group=group)
    found = re.search(r"^4 +\S+ +([\d.]+)", text, re.MULTILINE)
    if code != 0 or not found:
        raise RuntimeError(f"sluice bench failed: {text}")
    return float(found.group(1))


def check_quota(container, rounds=3):
    cpus = len(os.sched_getaffinity(0))
    if cpus < 2:
        print("skip 1.5-CPU quota: this machine has one CPU")
        return
    with ControlGroup(cpus=1.5) as group:
        if group.why_not:
            print(f"skip 1.5-CPU quota: no control group can be made here: {group.why_not}")
            return
        whole, limited = [], []
        for _ in range(rounds):
            whole.append(decode_rate(container, None))
            limited.append(decode_rate(container, group))
    share = statistics.median(b / a for a, b in zip(whole, limited))
    print(f"decode of 4 streams: {statistics.median(whole):.0f} tokens/s on {cpus} CPUs, "
          f"{statistics.median(limited):.0f} under a quota of 1.5: {share:.2f} of it")
    check(share >= SMALLEST_SHARE_UNDER_QUOTA,
          f"a 1.5-CPU quota leaves at least {SMALLEST_SHARE_UNDER_QUOTA} of the throughput")


def check_vllm(container):
    code, text = container.output("/usr/bin/vllm", "--version")
    check(code == 0 and re.fullmatch(r"\d+\.\d+\.\d+\n", text), f"vllm --version: {text.strip()}")
    with Server(container, "--served-model-name", "one", "two", "--gpu-memory-utilization", "0.9",
                command=("/usr/bin/vllm", "serve")) as server:
        check(server.get("/v1/models") == 200, "vllm serve MODEL serves")
    code, text = container.output("/usr/bin/vllm", "serve", container.inside_model,
                                  "--logits-processors", "some.Class")
    check(code == 2 and "--logits-processors" in text, "vllm serve refuses a flag that changes answers")


def lay_out(binary, root):
    xgrammar = run("bash", REPOSITORY / "deploy/install_xgrammar.sh", stdout=subprocess.PIPE).stdout
    run(sys.executable, REPOSITORY / "deploy/image_root.py", "--binary", binary, "--root", root,
        "--version", "0.1.0", "--xgrammar", xgrammar.splitlines()[-1], cwd=REPOSITORY)


def run_checks(root, model, quick):
    check_contents(root)
    container = Container(root, model)
    with Server(container) as server:
        check_confinement(server)
    with Server(container, user=ANY_USER) as server:
        check_user(server, ANY_USER)
    check_drain(container)
    check_vllm(container)
    if not quick:
        measure_layer(root)
        check_limits(container)
        measure_start(container)
        check_quota(container)


def lay_out_and_check(binary, model, quick):
    with tempfile.TemporaryDirectory(prefix="image_test") as folder:
        root = pathlib.Path(folder) / "image"  # where the build stage has it
        root.parent.chmod(0o755)
        lay_out(binary, root)
        if quick or shutil.which("buildah") is None:
            run_checks(root, model, quick)
        else:
            build_and_check(Buildah(), model, quick, "--build-context", f"build={folder}")


def build_and_check(buildah, model, quick, *arguments):
    started = time.monotonic()
    buildah.build(*arguments)
    print(f"built in {time.monotonic() - started:.0f} s")
    buildah.check_configuration()
    container = buildah.output("from", IMAGE)
    try:
        run_checks(pathlib.Path(buildah.output("mount", container)), model, quick)
    finally:
        buildah("rm", container, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--root", type=pathlib.Path)
    source.add_argument("--binary", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    model = arguments.model
    if model is None:
        fetched = run("bash", REPOSITORY / "deploy/fetch_model.sh", stdout=subprocess.PIPE).stdout
        model = pathlib.Path(fetched.splitlines()[-1])
    model = model.resolve()
    if (arguments.root or arguments.binary) and subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "true"], check=False).returncode != 0:
        skip("needs root, for namespaces and mounts")
    if arguments.root:
        run_checks(arguments.root.resolve(), model, arguments.quick)
    elif arguments.binary:
        lay_out_and_check(arguments.binary.resolve(), model, arguments.quick)
    else:
        install_tools()
        buildah = Buildah()
        build_and_check(buildah, model, arguments.quick, "--build-arg", f"BASE={buildah.base()}")
    print(f"image_test.py: {len(failures)} checks failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
