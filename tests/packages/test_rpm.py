"""The .rpm, installed into a root of its own."""

import os
import platform

import pytest
from conftest import needs, package, run, skip


@pytest.fixture(scope="module")
def rpm():
    needs("rpm")
    return package(f"ragent-*.{platform.machine()}.rpm")


def query(rpm, *words):
    return run("rpm", "--query", "--package", *words, rpm).stdout.splitlines()


def test_fields(rpm):
    """The package needs glibc, and nothing that only another distribution has."""
    needed = [line for line in query(rpm, "--requires") if not line.startswith("rpmlib(")]
    assert needed == ["glibc >= 2.17"]
    # The rpm of RHEL 8 does not know newer methods.
    assert query(rpm, "--queryformat", "%{PAYLOADCOMPRESSOR}") == ["gzip"]
    assert query(rpm, "--queryformat", "%{LICENSE}") == ["Apache-2.0"]
    end = run("rpm", "--checksig", "--nosignature", rpm)
    assert "digests OK" in end.stdout, end.stdout


def test_installation_and_removal(rpm, env, tmp_path):
    """rpm installs the program, its unit, pages, completions and documents, and removes all of them."""
    if os.geteuid() != 0:
        skip("rpm needs root")
    root = tmp_path / "root"
    root.mkdir()
    # The root has no glibc.
    run("rpm", "--root", root, "--install", "--nodeps", rpm)
    assert run(root / "usr/bin/ragent", "-V", env=env).stdout == f"ragent {rpm.name.split('-')[1]}\n"
    assert "slurm" in run(root / "usr/bin/ragent-notices", "--help", env=env).stdout
    unit = (root / "usr/lib/systemd/system/ragent@.service").read_text()
    assert "\nExecStart=/usr/bin/ragent " in unit
    for file in ["usr/share/man/man1/ragent.1.gz", "usr/share/zsh/site-functions/_ragent", "usr/share/licenses/ragent/LICENSE",
                 "usr/share/bash-completion/completions/ragent", "usr/share/doc/ragent/docs/failures.md"]:
        assert (root / file).stat().st_size > 100, file
    run("rpm", "--root", root, "--erase", "ragent")
    left = [path for path in root.rglob("*ragent*") if path.is_file()]
    assert left == []
