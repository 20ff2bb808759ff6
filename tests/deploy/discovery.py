# SPDX-License-Identifier: Apache-2.0
"""What kubectl asks a cluster before `create --dry-run=client`, and Helm before an installation that is not
made: which resources it has, and nothing more."""
import http.server
import json
import threading


def plural(kind):
    name = kind.lower()
    return name[:-1] + "ies" if name.endswith("y") else name + "s"


class Discovery:
    """`url` of an API server that knows the (apiVersion, kind) of `resources`, each namespaced."""

    def __init__(self, resources):
        self.pages = self.make_pages(sorted(resources))
        discovery = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                page = discovery.pages.get(self.path.partition("?")[0])
                body = page if isinstance(page, bytes) else json.dumps(
                    page or {"kind": "Status", "code": 404}).encode()
                self.send_response(404 if page is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @staticmethod
    def make_pages(resources):
        groups, pages = {}, {"/api": {"kind": "APIVersions", "versions": ["v1"]}}
        for version, kind in resources:
            place = f"/apis/{version}" if "/" in version else f"/api/{version}"
            page = pages.setdefault(place, {"kind": "APIResourceList", "apiVersion": "v1",
                                            "groupVersion": version, "resources": []})
            page["resources"].append({"name": plural(kind), "kind": kind, "namespaced": True,
                                      "verbs": ["create", "get"]})
            if "/" in version:
                groups[version.split("/")[0]] = {"groupVersion": version,
                                                 "version": version.split("/")[1]}
        # Helm asks for the version, and for schemas, of which there are none: a protobuf's one field.
        pages["/version"] = {"major": "1", "minor": "33", "gitVersion": "v1.33.0"}
        pages["/openapi/v2"] = b"\n\x032.0"
        pages["/apis"] = {"kind": "APIGroupList", "apiVersion": "v1", "groups": [
            {"name": name, "versions": [served], "preferredVersion": served}
            for name, served in groups.items()]}
        return pages

    def close(self):
        self.server.shutdown()
        self.server.server_close()
