#!/usr/bin/env python3
"""Lists the crates that are linked into the program, for its packages.

    scripts/components.py licenses TARGET       their licences, as text
    scripts/components.py sbom TARGET           the components as CycloneDX in JSON; needs cyclonedx-python-lib

The output depends on Cargo.lock and the version only, so that packages can be reproduced.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tomllib
import uuid

ROOT = pathlib.Path(__file__).parent.parent
NAMES = re.compile(r"^(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)
HEAD = """\
ragent contains the following software. Each is listed with the expression for its licences, and the texts follow.
It also contains the standard library of Rust (Apache-2.0 OR MIT), and LLVM's compiler-rt and libunwind
(Apache-2.0 WITH LLVM-exception).
"""


class Crates:
    """The crates of the workspace for one target."""

    def __init__(self, target):
        words = ["cargo", "metadata", "--format-version=1", "--locked", f"--filter-platform={target}"]
        metadata = json.loads(subprocess.run(words, cwd=ROOT, check=True, capture_output=True).stdout)
        self.packages = {package["id"]: package for package in metadata["packages"]}
        self.nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
        (self.own,) = [id for id, package in self.packages.items() if package["name"] == "ragent"]

    def dependencies(self, id):
        """The crates with which this one is linked. The code of macros is not linked."""
        for dependency in self.nodes[id]["deps"]:
            kinds = [target["kind"] for target in self.packages[dependency["pkg"]]["targets"]]
            is_linked = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            if is_linked and ["proc-macro"] not in kinds:
                yield dependency["pkg"]

    def linked(self):
        """The program's crate and all that are linked with it, by name and version."""
        found, rest = set(), [self.own]
        while rest:
            id = rest.pop()
            if id not in found:
                found.add(id)
                rest.extend(self.dependencies(id))
        for package in (self.packages[id] for id in found):
            if not package["license"]:
                sys.exit(
                    f"error: failed to list the licences\n  caused by: {package['name']} {package['version']} names none\n"
                    "hint: replace the crate, or add its licence to this script"
                )
        return sorted(found, key=lambda id: (self.packages[id]["name"], self.packages[id]["version"]))


def licenses(crates):
    """Prints each foreign crate, and then each text once, with the crates that have it."""
    users = {}
    print(HEAD)
    for package in (crates.packages[id] for id in crates.linked()):
        if not package["source"]:
            continue
        name = f"{package['name']} {package['version']}"
        print(f"{name}: {package['license']}")
        folder = pathlib.Path(package["manifest_path"]).parent
        for file in sorted(file for file in folder.iterdir() if file.is_file() and NAMES.match(file.name)):
            text = file.read_text(encoding="utf-8", errors="replace").strip()
            # Many texts differ in the width of their lines only.
            users.setdefault(" ".join(text.split()), (text, []))[1].append(name)
    for text, names in users.values():
        print("\n" + "=" * 80 + "\n" + ", ".join(names) + "\n\n" + text)


def sbom(crates, target):
    """Prints the components, with their checksums, licences and dependencies."""
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot5
    from packageurl import PackageURL

    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in locked}
    components = {}
    for id in crates.linked():
        package = crates.packages[id]
        name, version = package["name"], package["version"]
        checksum = checksums[name, version]
        components[id] = Component(
            type=ComponentType.APPLICATION if id == crates.own else ComponentType.LIBRARY,
            name=name,
            version=version,
            description=package["description"],
            purl=PackageURL("cargo", None, name, version),
            bom_ref=f"{name}@{version}",
            # Old crates separate alternatives by a slash.
            licenses=[LicenseFactory().make_from_string(package["license"].replace("/", " OR "))],
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=checksum)] if checksum else [],
        )
    own = components[crates.own]
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"ragent@{own.version}#{target}"))
    bom.metadata.component = own
    for id, component in components.items():
        if component is not own:
            bom.components.add(component)
        bom.register_dependency(component, [components[other] for other in crates.dependencies(id)])
    document = json.loads(JsonV1Dot5(bom).output_as_string())
    # The time of the output.
    del document["metadata"]["timestamp"]
    print(json.dumps(document, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["licenses", "sbom"])
    parser.add_argument("target")
    args = parser.parse_args()
    crates = Crates(args.target)
    if args.what == "licenses":
        licenses(crates)
    else:
        sbom(crates, args.target)


if __name__ == "__main__":
    main()
