"""The wheel: its program, and its installation, use and removal."""

import json
import os
import platform
import zipfile

from conftest import TOOLS, TORCH_PYTHON, needs, run, skip
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

# The version of glibc in the name of the wheel.
GLIBC = (2, 17)
# By the profile with which the program was built.
MAX_SIZE = {"dist": 7_500_000, "release": 10_000_000}
# Those of glibc alone.
LIBRARIES = {
    "libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "libutil.so.1",
    "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1",
}

TRAIN = r"""
import os
import torch, torch.distributed as dist
import ragent
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
ragent.step(1, total=1)
# One write, as both workers share the stream.
os.write(1, f"sum {total.item()} rank {dist.get_rank()}\n".encode())
dist.destroy_process_group()
"""


def install(venv, wheel):
    """Installs the wheel without an index: it has no dependencies."""
    run(venv / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", wheel)


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def site_packages(venv):
    (folder,) = venv.glob("lib/python3*/site-packages")
    return folder


def put_torch(venv):
    """Makes the torch of .venv importable in an environment."""
    if not TORCH_PYTHON.exists():
        skip(f"{TORCH_PYTHON} is missing: `make venv` creates it")
    theirs = run(TORCH_PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    (site_packages(venv) / "torch.pth").write_text(theirs + "\n")


def test_size(wheel):
    """The wheel is small."""
    assert wheel.stat().st_size < MAX_SIZE[os.environ.get("PROFILE", "dist")]


def test_symbol_versions(wheel, tmp_path):
    """The program needs no library but glibc, and no version of a symbol after the one in the name of the wheel."""
    assert wheel.name.count(f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{platform.machine()}") == 1, wheel.name
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/scripts/ragent")]
        program = archive.extract(name, tmp_path)
    versions = set()
    with open(program, "rb") as file:
        elf = ELFFile(file)
        needed = [tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags() if tag.entry.d_tag == "DT_NEEDED"]
        for section in elf.iter_sections():
            if isinstance(section, GNUVerNeedSection):
                for _, symbols in section.iter_versions():
                    versions.update(symbol.name for symbol in symbols)
    assert "libc.so.6" in needed and set(needed) <= LIBRARIES, needed
    numbers = [tuple(map(int, version[len("GLIBC_") :].split("."))) for version in versions if version.startswith("GLIBC_")]
    assert len(numbers) == len(versions) > 3, versions
    assert max(numbers) <= GLIBC, sorted(numbers)


def test_auditwheel(wheel):
    """auditwheel finds the same."""
    text = run(TOOLS / "auditwheel", "show", wheel).stdout
    assert f'"manylinux_{GLIBC[0]}_{GLIBC[1]}_{platform.machine()}"' in text.replace("\n", " "), text


def test_contents(wheel):
    """The wheel has the module with its types, the licences, and a valid list of its components."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (sbom,) = [archive.read(name).decode() for name in names if "/sboms/" in name]
        (metadata,) = [archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
    module = ["ragent/__init__.py", "ragent/__main__.py", "ragent/py.typed", "ragent/integrations/lightning.py"]
    for end in [*module, "/licenses/LICENSE", "/licenses/THIRD-PARTY.txt"]:
        assert [name for name in names if name.endswith(end)], (end, names)
    assert JsonStrictValidator(SchemaVersion.V1_5).validate_str(sbom) is None
    components = {component["name"]: component for component in json.loads(sbom)["components"]}
    assert "tokio" in components and "proptest" not in components, components.keys()
    assert components["ring"]["licenses"] and components["ring"]["hashes"]
    assert "Requires-Python: >=3.8" in metadata
    # Another project has the name `ragent` in the public index.
    assert "\nName: ragent-launch\n" in metadata
    assert "Requires-Dist" not in metadata
    assert not [name for name in names if name.endswith((".pyc", ".so"))], names


def test_installation_use_and_removal(wheel, venv, env, tmp_path):
    """Installed next to torch, the program runs a job with the Python of its environment, which is not activated. So does the
    module. Without it, nothing is left."""
    put_torch(venv)
    before = files_below(venv)
    install(venv, wheel)
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    for program in [[venv / "bin/ragent"], [venv / "bin/python", "-m", "ragent"]]:
        end = run(*program, "--nproc-per-node", 2, script, env=env)
        lines = sorted(line for line in end.stdout.splitlines() if line.startswith("sum"))
        assert lines == [f"sum 3 rank {rank}" for rank in range(2)], end.stdout + end.stderr
    assert "slurm" in run(venv / "bin/ragent-notices", "--help", env=env).stdout
    run(venv / "bin/pip", "uninstall", "--quiet", "--disable-pip-version-check", "--yes", "ragent-launch")
    left = {name for name in files_below(venv) - before if "__pycache__" not in name}
    assert left == set(), left


def test_same_versions(wheel, venv, env):
    """The program, the metadata and the module have the same version."""
    install(venv, wheel)
    version = wheel.name.split("-")[1]
    assert run(venv / "bin/ragent", "-V", env=env).stdout == f"ragent {version}\n"
    assert run(venv / "bin/python", "-c", "import ragent; print(ragent.__version__)", env=env).stdout == f"{version}\n"
    long = run(venv / "bin/ragent", "--version", env=env).stdout
    assert "commit " in long and "protocol " in long, long


def test_torchrun_of_the_environment(wheel, venv, env):
    """`install-torchrun` makes the link in the environment, with a relative target, so that the environment can be moved."""
    install(venv, wheel)
    run(venv / "bin/ragent", "install-torchrun", venv / "bin", env=env)
    assert os.readlink(venv / "bin/torchrun") == "ragent"
    moved = venv.with_name("moved")
    venv.rename(moved)
    assert run(moved / "bin/torchrun", "--version", env=env).stdout.startswith("torchrun is ragent ")
    run(moved / "bin/ragent", "install-torchrun", "--undo", moved / "bin", env=env)
    assert not (moved / "bin/torchrun").exists()


def test_no_torch(wheel, venv, env, tmp_path):
    """If the environment has no torch, the report names the interpreter that lacks it."""
    install(venv, wheel)
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    end = run(venv / "bin/ragent", script, env=env, code=1)
    assert "No module named 'torch'" in end.stderr
    assert f"install 'torch' for the interpreter of the workers, which is {venv}/bin/python on this node" in end.stderr


def test_foreign_wheels(wheel, venv, tmp_path):
    """pip refuses a wheel for another architecture or for a newer glibc."""
    tag = wheel.name.split("-", 4)[4]
    for other in ["manylinux_2_17_s390x.whl", f"manylinux_2_99_{platform.machine()}.whl"]:
        renamed = tmp_path / wheel.name.replace(tag, other)
        renamed.write_bytes(wheel.read_bytes())
        end = run(venv / "bin/pip", "install", "--no-index", renamed, code=1)
        assert "is not a supported wheel on this platform" in end.stderr, end.stderr


def test_read_only_environment(wheel, venv, env, tmp_path):
    """Jobs run from an environment that cannot be written to, and the error of a link in it names the cause."""
    needs("unshare", "mount")
    if os.geteuid() != 0:
        skip("mounting needs root")
    install(venv, wheel)
    script = tmp_path / "train.py"
    script.write_text("import ragent\nragent.step(1)\nprint('trained')\n")
    def read_only(command, code):
        mount = f"mount --bind {venv} {venv} && mount -o remount,bind,ro {venv} && exec {command}"
        return run("unshare", "--mount", "sh", "-c", mount, env=env, code=code)
    for program in [f"{venv}/bin/ragent", f"{venv}/bin/python -m ragent"]:
        assert read_only(f"{program} {script}", 0).stdout == "trained\n"
    end = read_only(f"{venv}/bin/ragent install-torchrun {venv}/bin", 1)
    assert "failed to create the link `torchrun`" in end.stderr and "Read-only file system" in end.stderr, end.stderr
    pip = read_only(f"{venv}/bin/pip uninstall --yes ragent-launch", None)
    assert pip.returncode != 0
