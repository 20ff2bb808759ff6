#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lays out the root folder of the image: the program, the shared libraries that it loads, users,
licences, and a bill of materials (SPDX 2.3) made from what dpkg says about all of these. Run in the
build stage of deploy/Dockerfile."""
import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

USER = 10001
# Packages whose headers or archives are compiled into the program, so that ldd does not show them.
COMPILED_IN = re.compile(r"^(libboost1\.\d+-dev|nlohmann-json3-dev|libcli11-dev|libexpected-dev)$")


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def libraries_of(binary):
    """Paths of every shared object that the loader would map, the loader itself included."""
    paths = []
    for line in output_of("ldd", str(binary)).splitlines():
        if "not found" in line:
            sys.exit(f"image_root.py: {line.strip()}")
        found = re.search(r"(/\S+) \(0x", line)
        if found:
            paths.append(pathlib.Path(found.group(1)))
    return paths


def install_library(path, root):
    """Puts the file where the loader looks for it; /lib and /lib64 are links into /usr."""
    real = path.resolve()
    is_loader = path.name.startswith("ld-linux-x86-64")
    folder = "lib64" if is_loader else "lib/x86_64-linux-gnu"
    target = root / "usr" / folder / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(real, target)
    target.chmod(0o755)


class OpenedLibrary:
    """A library that the program opens at run time, where ldd does not see it: `PATH`, or
    `PATH=LICENCE` where no package owns it."""

    def __init__(self, text):
        path, _, licence = text.partition("=")
        self.path = pathlib.Path(path)
        self.licence = pathlib.Path(licence) if licence else None
        self.name = self.path.name.split(".so")[0]

    def describe(self):
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        return {
            "SPDXID": f"SPDXRef-{self.name}",
            "name": self.name,
            "versionInfo": self.path.resolve().name.split(".so.")[-1],
            "supplier": "NOASSERTION",
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": "NOASSERTION",
            "copyrightText": f"see /usr/share/doc/{self.name}/{self.licence.name}",
            "checksums": [{"algorithm": "SHA256", "checksumValue": digest}],
        }


def packages_of_files(paths):
    """dpkg knows a file of a merged /usr by either of two names. Ends where no package owns one."""
    names = {}
    for path in paths:
        real = str(path.resolve())
        for name in (real, real.removeprefix("/usr"), str(path)):
            names.setdefault(name, set()).add(path)
    listed = subprocess.run(["dpkg", "-S", *names], capture_output=True, text=True, check=False).stdout
    owners = {}
    for package, name in re.findall(r"^([^:,\s]+)(?::\w+)?: (.+)$", listed, re.MULTILINE):
        owners |= {path: package for path in names.get(name, ())}
    without = sorted(str(path) for path in set(paths) - set(owners))
    if without:
        sys.exit(f"image_root.py: no package owns {without}")
    return set(owners.values())


def packages_of(libraries):
    installed = output_of("dpkg-query", "-W", "-f", "${Package}\n").split()
    return sorted(packages_of_files(libraries) | {name for name in installed if COMPILED_IN.match(name)})


def describe_packages(packages):
    listed = output_of("dpkg-query", "-W", "-f",
                       "${Package}\t${Version}\t${Architecture}\t${source:Package}\n", *packages)
    return [describe(*line.split("\t")) for line in listed.splitlines()]


def describe(package, version, architecture, source):
    distribution = "debian"
    release = pathlib.Path("/etc/os-release")
    if release.exists() and "ID=ubuntu" in release.read_text():
        distribution = "ubuntu"
    return {
        "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.]", "-", package),
        "name": package,
        "versionInfo": version,
        "supplier": f"Organization: {distribution}",
        "sourceInfo": f"built from source package {source}",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": f"see /usr/share/doc/{package}/copyright",
        "externalRefs": [{
            "referenceCategory": "PACKAGE-MANAGER",
            "referenceType": "purl",
            "referenceLocator": f"pkg:deb/{distribution}/{package}@{version}?arch={architecture}",
        }],
    }


def describe_xgrammar(root):
    version = re.search(r"xgrammar-([0-9.]+)$", root.name).group(1)
    return {
        "SPDXID": "SPDXRef-xgrammar",
        "name": "xgrammar",
        "versionInfo": version,
        "supplier": "NOASSERTION",
        "sourceInfo": "compiled into the program, with picojson (BSD-2-Clause) and DLPack's header",
        "downloadLocation": f"https://pypi.org/project/xgrammar/{version}/",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "Apache-2.0",
        "copyrightText": "see /usr/share/doc/xgrammar/LICENSE",
        "externalRefs": [{
            "referenceCategory": "PACKAGE-MANAGER",
            "referenceType": "purl",
            "referenceLocator": f"pkg:pypi/xgrammar@{version}",
        }],
    }


def bill_of_materials(binary, version, described):
    digest = hashlib.sha256(binary.read_bytes()).hexdigest()
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    moment = (datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc) if seconds
              else datetime.datetime.now(datetime.timezone.utc))
    program = {
        "SPDXID": "SPDXRef-sluice",
        "name": "sluice",
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "Apache-2.0",
        "licenseDeclared": "Apache-2.0",
        "copyrightText": "NOASSERTION",
        "checksums": [{"algorithm": "SHA256", "checksumValue": digest}],
    }
    contains = [{"spdxElementId": "SPDXRef-sluice", "relationshipType": "DEPENDS_ON",
                 "relatedSpdxElement": package["SPDXID"]} for package in described]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"sluice-{version}",
        "documentNamespace": f"urn:sluice:image:{version}:{digest}",
        "creationInfo": {"created": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
                         "creators": ["Tool: image_root.py"]},
        "packages": [program] + described,
        "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                           "relatedSpdxElement": "SPDXRef-sluice"}] + contains,
    }


def lay_out_folders(root):
    # Mount points of a container runtime, which cannot make them on a read-only root.
    for name in ("dev", "proc", "sys", "models", "etc", "usr/bin", "usr/lib", "usr/lib64"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    home = root / "home" / "sluice"
    home.mkdir(parents=True)
    os.chown(home, USER, USER)
    for name in ("hosts", "resolv.conf", "hostname"):  # a runtime mounts its own over these
        (root / "etc" / name).touch()
    (root / "etc" / "passwd").write_text(
        f"root:x:0:0:root:/:/nonexistent\nsluice:x:{USER}:{USER}::/home/sluice:/nonexistent\n")
    (root / "etc" / "group").write_text(f"root:x:0:\nsluice:x:{USER}:\n")
    (root / "etc" / "nsswitch.conf").write_text("hosts: files dns\n")


def install_certificates(root):
    """Those that the distribution trusts, where its OpenSSL looks: models by name come by https."""
    target = root / "etc" / "ssl" / "certs"
    target.mkdir(parents=True)
    shutil.copy2("/etc/ssl/certs/ca-certificates.crt", target)
    place = root / "usr" / "lib" / "ssl"
    place.mkdir(parents=True)
    (place / "cert.pem").symlink_to("/etc/ssl/certs/ca-certificates.crt")


def install_terminals(root):
    """What `sluice chat` must know of common terminals to edit a line."""
    for name in ("linux", "screen", "screen-256color", "tmux", "tmux-256color", "vt100", "xterm",
                 "xterm-256color"):
        for source in ("/lib/terminfo", "/usr/share/terminfo"):
            path = pathlib.Path(source, name[0], name)
            if path.exists():
                target = root / "usr" / "share" / "terminfo" / name[0]
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
                break


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=pathlib.Path, required=True)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--xgrammar", type=pathlib.Path, required=True,
                        help="what deploy/install_xgrammar.sh prints")
    parser.add_argument("--library", type=OpenedLibrary, nargs="*", default=[],
                        metavar="PATH[=LICENCE]", help="opened at run time, as NCCL is by several GPUs")
    arguments = parser.parse_args()
    root = arguments.root
    root.mkdir()

    lay_out_folders(root)
    program = root / "usr" / "bin" / "sluice"
    shutil.copy2(arguments.binary, program)
    subprocess.run(["strip", str(program)], check=True)
    (root / "usr" / "bin" / "vllm").symlink_to("sluice")

    without_package = [library for library in arguments.library if library.licence]
    opened = [library.path for library in arguments.library]
    libraries = {*libraries_of(arguments.binary), *opened,
                 *(needed for path in opened for needed in libraries_of(path))}
    for path in libraries:
        install_library(path, root)
    libraries -= {library.path for library in without_package}
    install_certificates(root)
    install_terminals(root)
    packages = sorted({*packages_of(libraries), "ca-certificates", "ncurses-base"})
    for package in packages:
        target = root / "usr" / "share" / "doc" / package
        target.mkdir(parents=True)
        shutil.copy2(f"/usr/share/doc/{package}/copyright", target / "copyright")
    for library in without_package:
        target = root / "usr" / "share" / "doc" / library.name
        target.mkdir(parents=True)
        shutil.copy2(library.licence, target)
    own = root / "usr" / "share" / "doc" / "sluice"
    own.mkdir(parents=True)
    shutil.copy2("LICENSE", own / "LICENSE")
    grammar = root / "usr" / "share" / "doc" / "xgrammar"
    grammar.mkdir(parents=True)
    shutil.copytree(arguments.xgrammar / "share" / "xgrammar", grammar, dirs_exist_ok=True)
    described = [*describe_packages(packages), describe_xgrammar(arguments.xgrammar),
                 *(library.describe() for library in without_package)]
    bill = root / "usr" / "share" / "sbom" / "sluice.spdx.json"
    bill.parent.mkdir(parents=True)
    bill.write_text(json.dumps(bill_of_materials(program, arguments.version, described), indent=1))
    print(f"image root: {len(libraries)} libraries of {len(packages)} packages")


if __name__ == "__main__":
    main()
