# SPDX-License-Identifier: Apache-2.0
"""Between two processes: a TCP proxy that does to bytes what a seed says."""
import contextlib
import dataclasses
import os
import random
import re
import socket
import struct
import threading

KINDS = ("cut", "reset", "half", "stall", "flip", "drop", "repeat", "slow")
MOST_READ = 65536


@dataclasses.dataclass
class Fault:
    """Once so many bytes went that way on all connections together."""
    kind: str
    at: int
    amount: int  # bytes that are dropped or repeated; the bit that is flipped
    seconds: float  # of a stall
    is_done: bool = False


class Plan:
    """Faults by link, a name, and direction: from who dials ("up") or to it ("down")."""

    def __init__(self, faults=None):
        self.faults = faults or {}
        self.over = threading.Event()  # what is stalled or slow goes on
        self.lock = threading.Lock()
        self.counts = {}

    @staticmethod
    def draw(seed, links, kinds=KINDS):
        """`links`: how many bytes each usually has, by direction."""
        source = random.Random(seed)
        faults = {}
        for _ in range(source.choice((1, 1, 2))):
            way, usual = source.choice(sorted(links.items()))
            # The beginning of what is said is worth as much as all the rest.
            at = source.randrange(source.choice((200, usual)))
            faults.setdefault(way, []).append(Fault(
                source.choice(kinds), at, source.choice((1, 3, 96, 1000)),
                source.choice((0.05, 0.3, 1.5))))
        return Plan(faults)

    def take(self, way, count):
        """The fault among the next `count` bytes, if there is one, and where."""
        with self.lock:
            begin = self.counts.get(way, 0)
            self.counts[way] = begin + count
            for fault in self.faults.get(way, ()):
                if not fault.is_done and fault.at < begin + count:
                    fault.is_done = True
                    return fault, max(fault.at - begin, 0)
        return None, 0

    def fired(self):
        return [(way, fault.kind) for way, faults in self.faults.items()
                for fault in faults if fault.is_done]

    def __repr__(self):
        return repr(self.faults)


class Ended(Exception):
    """The connection, for both ends."""


class Proxy:
    """Listens on a port of its own and passes on to `target()`, a port of this machine."""

    def __init__(self, link, target, rewrite=lambda data: data):
        self.link, self.target, self.rewrite = link, target, rewrite
        self.plan = Plan()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.open = set()
        threading.Thread(target=self.accept_all, daemon=True).start()

    def accept_all(self):
        while True:
            try:
                dialled, _ = self.listener.accept()
            except OSError:
                return
            try:
                target = socket.create_connection(("127.0.0.1", self.target()), timeout=5)
            except OSError:
                dialled.close()
                continue
            for one in (dialled, target):
                one.settimeout(None)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ends = (dialled, target)
            self.open.add(ends)
            for direction, (source, sink) in (("up", ends), ("down", ends[::-1])):
                threading.Thread(target=self.pump, args=(ends, source, sink, direction),
                                 daemon=True).start()

    def pump(self, ends, source, sink, direction):
        try:
            while data := source.recv(MOST_READ):
                self.pass_on(self.rewrite(data) if direction == "down" else data,
                             ends, sink, (self.link, direction))
            sink.shutdown(socket.SHUT_WR)
        except Ended:
            self.end(ends)
        except OSError:
            self.end(ends)

    def pass_on(self, data, ends, sink, way):
        plan = self.plan
        fault, at = plan.take(way, len(data))
        if fault is None:
            return sink.sendall(data)
        sink.sendall(data[:at])
        rest = data[at:]
        if fault.kind == "cut":
            raise Ended
        if fault.kind == "reset":
            for end in ends:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise Ended
        if fault.kind == "half":
            sink.shutdown(socket.SHUT_WR)
            plan.over.wait(5)
            raise Ended
        if fault.kind == "stall":
            plan.over.wait(fault.seconds)
        elif fault.kind == "flip":
            rest = bytes([rest[0] ^ 1 << fault.amount % 8]) + rest[1:]
        elif fault.kind == "drop":
            rest = rest[fault.amount:]
        elif fault.kind == "repeat":
            rest = rest[:fault.amount] + rest
        elif fault.kind == "slow":
            while rest and not plan.over.is_set():
                sink.sendall(rest[:64])
                rest = rest[64:]
                plan.over.wait(0.002)
        return sink.sendall(rest)

    def end(self, ends):
        self.open.discard(ends)
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def cut_all(self):
        for ends in list(self.open):
            self.end(ends)


def listening_ports(process):
    """TCP ports of 127.0.0.1 that a process listens on."""
    folder = f"/proc/{process.pid}/fd"
    inodes = set()
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(os.path.join(folder, name)))
            if found:
                inodes.add(found[1])
    ports = set()
    with open("/proc/net/tcp") as table:
        for line in list(table)[1:]:
            fields = line.split()
            address, port = fields[1].split(":")
            if fields[3] == "0A" and address == "0100007F" and fields[9] in inodes:
                ports.add(int(port, 16))
    return ports
