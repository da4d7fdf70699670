"""The .deb, installed into a root of its own."""

import os
import platform
import re

import pytest
from conftest import needs, package, run, skip

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@pytest.fixture(scope="module")
def deb():
    needs("dpkg", "dpkg-deb")
    return package(f"ragent_*_{ARCHITECTURES[platform.machine()]}.deb")


@pytest.fixture
def dpkg(tmp_path):
    """Calls dpkg on an empty root."""
    if os.geteuid() != 0:
        skip("dpkg needs root")
    root = tmp_path / "root"
    for folder in ["info", "updates", "triggers"]:
        (root / "var/lib/dpkg" / folder).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()

    def call(*words):
        # The root has neither a shell for the scripts nor libc6.
        return run("dpkg", f"--root={root}", "--force-script-chrootless", "--force-depends", *words)

    call.root = root
    return call


def test_fields(deb):
    """The package has one dependency, and the version of the program."""
    fields = dict(re.findall(r"^([A-Z][\w-]*): (.*)$", run("dpkg-deb", "--field", deb).stdout, re.MULTILINE))
    assert fields["Depends"] == "libc6 (>= 2.17)"
    assert fields["Version"] + "_" + fields["Architecture"] == deb.stem.split("_", 1)[1]


def test_installation_and_removal(deb, dpkg, env):
    """dpkg installs the program, its unit, pages, completions and documents, and removes all of them."""
    dpkg("--install", deb)
    root = dpkg.root
    program = root / "usr/bin/ragent"
    assert run(program, "-V", env=env).stdout == f"ragent {deb.name.split('_')[1].rsplit('-', 1)[0]}\n"
    end = run(program, "--nproc-per-node", 2, "--no-python", "sh", "-c", "echo rank $RANK", env=env)
    assert sorted(end.stdout.splitlines()) == ["rank 0", "rank 1"]
    assert "slurm" in run(root / "usr/bin/ragent-notices", "--help", env=env).stdout
    for file in ["usr/share/doc/ragent/copyright", "usr/share/doc/ragent/docs/failures.md", "usr/share/doc/ragent/examples/job.env.example",
                 "usr/share/zsh/vendor-completions/_ragent", "usr/share/fish/vendor_completions.d/ragent.fish"]:
        assert (root / file).stat().st_size > 100, file
    dpkg("--purge", "ragent")
    left = [path for path in root.rglob("*") if path.is_file() and "var/lib/dpkg" not in str(path)]
    assert left == []


def test_unit(deb, dpkg):
    """systemd accepts the unit of the package, which starts the program of the package."""
    needs("systemd-analyze", "man")
    dpkg("--install", deb)
    (unit,) = dpkg.root.rglob("ragent@.service")
    assert "\nExecStart=/usr/bin/ragent " in unit.read_text()
    # systemd searches other units in the root, too.
    for name in ["sysinit", "basic", "shutdown", "network-online", "multi-user"]:
        (unit.parent / f"{name}.target").write_text("[Unit]\nDescription=made for a test\n")
    (unit.parent / "-.slice").write_text("[Unit]\nDescription=made for a test\n")
    # It also checks that the page exists which the unit names.
    env = {"PATH": "/usr/bin:/bin", "MANPATH": str(dpkg.root / "usr/share/man")}
    end = run("systemd-analyze", "verify", f"--root={dpkg.root}", unit, env=env, code=None)
    lines = [line for line in end.stderr.splitlines() if "ragent" in line]
    assert (end.returncode, lines) == (0, []), end.stderr


def test_man_pages(deb, dpkg):
    """`man` finds and prints each page, without warnings."""
    needs("man")
    dpkg("--install", deb)
    man = dpkg.root / "usr/share/man"
    pages = sorted(page.name.removesuffix(".1.gz") for page in man.glob("man1/*"))
    assert len(pages) > 10, pages
    env = {"PATH": "/usr/bin:/bin", "MANROFFSEQ": "", "MANWIDTH": "100", "LC_ALL": "C.UTF-8"}
    for page in pages:
        end = run("man", "--warnings", "-M", man, page, env=env)
        assert end.stderr == "", end.stderr
        assert "NAME" in end.stdout and page in end.stdout, end.stdout
    text = run("man", "-M", man, "ragent", env=env).stdout
    assert "--nproc-per-node" in text and "ragent-doctor(1)" in text, text


def test_completion(deb, dpkg):
    """bash completes commands and flags."""
    dpkg("--install", deb)
    file = dpkg.root / "usr/share/bash-completion/completions/ragent"

    def complete(word):
        script = f"source {file}; COMP_WORDS=(ragent {word}); COMP_CWORD=1; _ragent ragent {word} ragent; echo ${{COMPREPLY[@]}}"
        return run("bash", "-c", script).stdout.split()

    assert complete("expl") == ["explain"]
    assert "--nproc-per-node" in complete("--nproc-per")
