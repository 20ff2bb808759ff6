#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`sluice health` against servers that answer, refuse and keep silent: health_test.py SLUICE.

A container's health check runs it, so what counts is the exit code, and that it ends.
"""

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
DRAINING = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy"


@contextlib.contextmanager
def answering(listener, answer, context=None):
    """Gives the answer to one connection; the requests' heads are in the list that it yields."""
    heads = []

    def serve():
        connection, _ = listener.accept()
        with connection if context is None else context.wrap_socket(connection, server_side=True) as peer:
            heads.append(peer.recv(4096).decode())
            peer.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield heads
    finally:
        thread.join(timeout=60)
        listener.close()
    assert not thread.is_alive(), "nobody asked"


def health(sluice, *arguments, environment=None):
    done = subprocess.run([sluice, "health", *arguments], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "http_proxy": "http://127.0.0.1:1", **(environment or {})})
    return done.returncode, done.stdout.strip() or done.stderr.strip()


def over_tcp():
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, listener.getsockname()[1]


def check_tcp(sluice):
    listener, port = over_tcp()
    with answering(listener, OK) as heads:
        assert health(sluice, "--url", f"http://127.0.0.1:{port}/v1") == (0, "healthy")
    assert heads[0].startswith("GET /health HTTP/1.1\r\n") and f"Host: 127.0.0.1:{port}\r\n" in heads[0], heads
    listener, port = over_tcp()
    with answering(listener, OK):
        assert health(sluice, environment={"SLUICE_PORT": str(port)}) == (0, "healthy")
    listener, port = over_tcp()
    with answering(listener, DRAINING):
        assert health(sluice, "--url", f"http://127.0.0.1:{port}") == (
            1, f"sluice: http://127.0.0.1:{port}: status 503 Service Unavailable")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        code, line = health(sluice, "--url", f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert code == 1 and "Connection refused" in line, line
    code, line = health(sluice, "--url", "127.0.0.1")
    assert code == 2 and "--url must look like" in line, line


def check_unix(sluice, folder):
    path = os.path.join(folder, "socket")
    for arguments, environment in ((("--url", "unix:" + path), {}), ((), {"SLUICE_UDS": path})):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        with answering(listener, OK) as heads:
            assert health(sluice, *arguments, environment=environment) == (0, "healthy")
        assert "Host: localhost\r\n" in heads[0], heads
        os.unlink(path)
    code, line = health(sluice, "--url", "unix:" + path)
    assert code == 1 and "No such file" in line, line
    assert health(sluice, "--url", "unix:")[0] == 2


def check_tls(sluice, folder):
    """Whose certificate it is does not matter."""
    key, certificate = os.path.join(folder, "key.pem"), os.path.join(folder, "certificate.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out",
                    certificate, "-subj", "/CN=elsewhere", "-days", "1"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listener, port = over_tcp()
    with answering(listener, OK, context):
        assert health(sluice, "--url", f"https://127.0.0.1:{port}") == (0, "healthy")


def check_silence(sluice):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code, line = health(sluice, "--url", f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert code == 1 and "nothing came for 5 s" in line, line


def main():
    sluice = sys.argv[1]
    check_tcp(sluice)
    with tempfile.TemporaryDirectory() as folder:
        check_unix(sluice, folder)
        check_tls(sluice, folder)
    check_silence(sluice)


if __name__ == "__main__":
    main()
