"""Prints everything that a Python process can find out about itself: `portrait NAME: VALUE` per line."""

import os
import sys

# Before anything else is imported.
DESCRIPTORS = sorted(os.listdir("/proc/self/fd"), key=int)
MAIN = sorted(globals())

# A standby has imported these, and what it needs itself.
import _signal
import _socket
import ctypes
import decimal
import faulthandler
import fcntl
import gc
import json
import signal
import subprocess
import threading
import time
import warnings

OF_ROUND = (
    "MASTER_PORT",
    "RAGENT_MEMORY_SOCKET",
    "RAGENT_NOTICE_FILE",
    "RAGENT_SAVED_STEP",
    "RAGENT_SOCKET",
    "TORCHELASTIC_ERROR_FILE",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_WORKER_SERVER_SOCKET",
)
KEEPER = os.getppid()


def shown(name, value):
    print("portrait %s: %r" % (name, value), flush=True)


def read(path):
    with open(path) as file:
        return file.read()


def without_round(environment):
    known = {name: value for name, value in environment.items() if name not in OF_ROUND}
    return dict(sorted(known.items()), **{name: name in environment for name in OF_ROUND})


def descriptor(number):
    target = os.readlink("/proc/self/fd/%d" % number).partition(":")[0]
    flags = fcntl.fcntl(number, fcntl.F_GETFL), fcntl.fcntl(number, fcntl.F_GETFD)
    return number, target, flags


def stream(file):
    raw = getattr(file.buffer, "raw", file.buffer)
    layers = [type(layer).__name__ for layer in (file, file.buffer, raw)]
    text = file.name, file.mode, file.encoding, file.errors, file.newlines
    lines = file.line_buffering, file.write_through
    kind = file.fileno(), file.isatty(), file.seekable(), file.readable(), file.writable()
    return layers, text, lines, kind, (raw.name, raw.mode, raw.closefd, raw.fileno())


def status():
    # `SigQ` counts the signals of all processes of the user.
    differs = ("SigQ", "Pid", "Tgid", "NStgid", "NSpid", "NSpgid", "NSsid", "PPid", "FDSize")
    fields = (line.split(None, 1) for line in read("/proc/self/status").splitlines())
    pairs = ((words[0].rstrip(":"), words[1:]) for words in fields)
    return {
        name: value
        for name, value in pairs
        if name not in differs and "ctxt_switches" not in name and not name.startswith(("Vm", "Rss", "Huge"))
    }


shown("environ", without_round(os.environ))
shown("environb", len(os.environb) == len(os.environ))
env = subprocess.run(["/usr/bin/env", "-0"], stdout=subprocess.PIPE).stdout.decode()
shown("environment of children", without_round(dict(pair.split("=", 1) for pair in env.split("\0") if pair)))
shown("type of environ", (type(os.environ), type(os.environb)))
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
shown("getenv", (getenv(b"RANK"), getenv(b"PYTHONPATH"), getenv(b"RAGENT_STANDBY")))
shown("arguments", (sys.argv, sys.orig_argv))
shown("path", sys.path)
shown("path_importer_cache", [path for path in sys.path_importer_cache if "standby-" in path])
shown("hooks", ([getattr(hook, "__name__", type(hook)) for hook in sys.meta_path], len(sys.path_hooks)))
shown("flags", sys.flags)
shown("options", (sys.warnoptions, sys._xoptions, sys.dont_write_bytecode, sys.executable))
shown("main", MAIN)
values = ("__name__", "__file__", "__package__", "__cached__", "__doc__", "__annotations__")
shown("main values", [globals().get(name) for name in values])
shown("main loader", type(__loader__).__name__)
shown("main spec", __spec__ and (__spec__.name, __spec__.origin))
shown("folder", os.getcwd())
shown("descriptors", [descriptor(int(number)) for number in DESCRIPTORS[:3]])
shown("number of descriptors", len(DESCRIPTORS))
numbers = sorted(signal.valid_signals())
shown("handlers", {int(number): repr(signal.getsignal(number)) for number in numbers})
shown("blocked", signal.pthread_sigmask(signal.SIG_BLOCK, []))
shown("wakeup", signal.set_wakeup_fd(-1))
shown("status", status())
shown("threads", (threading.active_count(), len(os.listdir("/proc/self/task"))))
shown("comm", read("/proc/self/comm"))
shown("cmdline", read("/proc/self/cmdline"))
shown("oom_score_adj", read("/proc/self/oom_score_adj"))
shown("limits", read("/proc/self/limits"))
shown("cgroup", read("/proc/self/cgroup").replace("ragent-%d-" % KEEPER, "keeper-").splitlines()[-1].split("keeper-")[-1].partition("/")[2])
shown("leads", (os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()))
shown("parent", read("/proc/%d/cmdline" % KEEPER).rstrip("\0").endswith("__keeper"))
shown("scheduling", (os.sched_getaffinity(0), os.sched_getscheduler(0), os.nice(0)))
parent_death = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(parent_death))
shown("signal at the end of the parent", parent_death.value)
for name in ("stdin", "stdout", "stderr"):
    shown(name, stream(getattr(sys, name)))
    shown(name + " is kept", getattr(sys, name) is getattr(sys, "__%s__" % name))
shown("hooks of the interpreter", (sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.gettrace(), sys.getprofile()))
shown("collector", (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.callbacks))
shown("faulthandler", faulthandler.is_enabled())
shown("warnings", warnings.filters)
shown("recursion", (sys.getrecursionlimit(), sys.getswitchinterval()))
shown("modules", sorted(set(sys.modules) - {"sitecustomize"}))
print("portrait is complete", flush=True)
