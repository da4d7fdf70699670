"""Turns a Python interpreter into a standby: it imports modules and waits for its round.

Python imports this file before the script, because its folder is the first one in PYTHONPATH. Until
the round starts, stdin is a socket to the keeper. Then this process takes over the environment and
the streams of the worker, this file returns, and Python runs the script as after any start.

If the round does not match what the imported modules have seen, or has no socket for reports, this
process ends, and the worker is started as a new one. If the script later changes a variable that
modules have read, before it imports them itself, this process reports that: the workers start
again, and standbys leave the modules out.

Variables (removed before anything else runs):
  RAGENT_STANDBY          the modules, separated by commas; `?` to test only that this file is run
  RAGENT_STANDBY_SCRIPT   the script, or the folder, where Python will search for modules first
  RAGENT_STANDBY_PATH     the value of PYTHONPATH for the script, if it is set
  RAGENT_STANDBY_OBSERVE  set if the worker starts torch's worker server
  RANK and others         not numbers, so that a script that runs without this file fails
"""

import os
import sys

DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")
STREAMS = (("stdin", "rb"), ("stdout", "wb"), ("stderr", "wb"))
POISONED = ("MASTER_PORT", "RANK", "WORLD_SIZE")
FAILED = 70
# Libraries that read variables when they are loaded: a part of the file's name, and of the variables' names.
LIBRARIES = {
    "libgomp": ("OMP_", "GOMP_"),
    "libiomp": ("OMP_", "KMP_"),
    "libomp": ("OMP_", "KMP_"),
    "openblas": ("OPENBLAS_", "OMP_NUM_THREADS"),
}
# In seconds: workers are ended within their grace period.
WAIT_FOR_END = 600


def take_variables():
    """Removes this file and its variables from the environment of the script."""
    for name in POISONED:
        os.environ.pop(name, None)
    modules = os.environ.pop("RAGENT_STANDBY")
    searched = os.path.realpath(os.environ.pop("RAGENT_STANDBY_SCRIPT", "."))
    path = os.environ.pop("RAGENT_STANDBY_PATH", None)
    is_observed = os.environ.pop("RAGENT_STANDBY_OBSERVE", None) is not None
    if path is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = path
    own = os.path.dirname(__file__)
    sys.path.remove(own)
    sys.path_importer_cache.pop(own, None)
    folder = searched if os.path.isdir(searched) else os.path.dirname(searched)
    return modules.split(","), folder, is_observed


def run_next_sitecustomize():
    """Runs the `sitecustomize` that this file has hidden, if there is one."""
    own = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    # The import system expects an entry. This one has no content.
    sys.modules.setdefault("sitecustomize", type(own)("sitecustomize"))


class Record:
    """The variables that modules read or change while they are imported, and the modules that import others."""

    def __init__(self, modules):
        self.modules = modules
        self.module = ""
        self.read = {}
        self.changed = {}
        self.by_library = {}
        self.imports = {}
        self.copied = None, set()
        self.classes = [(environ, type(environ)) for environ in (os.environ, os.environb)]
        kind = type(os.environ)
        # A module that lists the environment depends on no variable in particular.
        views = sys.modules["_collections_abc"]
        listing = [views.ItemsView.__iter__.__code__, views.ValuesView.__iter__.__code__]
        record = self

        class Recording(kind):
            def keys(self):
                keys = super().keys()
                record.copied = instruction(sys._getframe(1)), {os.fsdecode(key) for key in keys}
                return keys

            def __getitem__(self, key):
                name, caller = os.fsdecode(key), sys._getframe(1)
                is_listed = caller.f_code in listing or record.is_copied(name, caller)
                try:
                    value = super().__getitem__(key)
                except KeyError:
                    record.note_read(name, None, is_listed)
                    raise
                record.note_read(name, os.fsdecode(value), is_listed)
                return value

            def __setitem__(self, key, value):
                record.changed.setdefault(os.fsdecode(key), (record.module, "sets"))
                super().__setitem__(key, value)

            def __delitem__(self, key):
                record.changed.setdefault(os.fsdecode(key), (record.module, "removes"))
                super().__delitem__(key)

        for environ, _ in self.classes:
            environ.__class__ = Recording
        self.imported = ImportedNames(modules, self.note_import)

    def is_copied(self, name, caller):
        """Returns true if a copy, such as `dict(os.environ)`, reads the variable."""
        # C code copies a mapping: one instruction calls `keys`, and then reads each name once.
        copier, names = self.copied
        is_copied = name in names and instruction(caller) == copier
        if is_copied:
            names.discard(name)
        return is_copied

    def note_read(self, name, value, is_listed):
        seen = self.read.setdefault(name, {})
        earlier, was_listed = seen.get(self.module, (value, True))
        seen[self.module] = earlier, was_listed and is_listed

    def note_import(self, name):
        if name != self.module:
            self.imports.setdefault(self.module, set()).add(name)

    def note_libraries(self):
        """Attributes the variables that newly loaded libraries have read to the module of this moment."""
        with open("/proc/self/maps") as maps:
            text = maps.read()
        for library, prefixes in LIBRARIES.items():
            if library in text and library not in self.by_library:
                known = {name: os.environ._data[name] for name in os.environ._data}
                known = {os.fsdecode(name): os.fsdecode(value) for name, value in known.items()}
                self.by_library[library] = self.module, prefixes, known

    def stop(self):
        for environ, kind in self.classes:
            environ.__class__ = kind
        self.imported.stop()

    def contradiction(self, env):
        """Returns the module that has seen another value than the round's, and the variable."""
        for name, value in env.items():
            for module, (seen, _) in self.read.get(name, {}).items():
                if seen != value:
                    return module, "it reads %s while it is imported" % name
            if name in self.changed:
                module, change = self.changed[name]
                return module, "it %s %s while it is imported" % (change, name)
        return None

    def affected(self, name, value, waiting):
        """Returns those of the modules `waiting` that would see another value if they were imported now."""
        readers = self.read.get(name, {}).items()
        found = {module for module, (seen, is_listed) in readers if seen != value and not is_listed}
        if name in self.changed:
            found.add(self.changed[name][0])
        for module, prefixes, known in self.by_library.values():
            if name.startswith(prefixes) and known.get(name) != value:
                found.add(module)
        return self.with_importers(found & waiting) & waiting

    def with_importers(self, found):
        """Adds the modules that import one of these."""
        return found | {module for module, others in self.imports.items() if found & others}


def respect_old_name(name):
    """Removes the path for torch's records that the agent has chosen, if the script chooses one by the older name."""
    folder = os.path.dirname(os.path.dirname(os.environ.get("TORCHELASTIC_ERROR_FILE", "")))
    chosen = os.path.join(folder, "nccl_trace_rank_")
    if name == "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" and os.environ.get("TORCH_FR_DUMP_TEMP_FILE") == chosen:
        del os.environ["TORCH_FR_DUMP_TEMP_FILE"]


def instruction(frame):
    return frame.f_code, frame.f_lasti


class ImportedNames:
    """Reports which of `modules` Python code imports, although they may be loaded already."""

    def __init__(self, modules, report):
        import builtins

        self.builtins, original = builtins, builtins.__import__
        self.original, wanted = original, set(modules)

        def import_and_report(name, globals=None, locals=None, fromlist=(), level=0):
            full = name
            if level and globals:
                base = (globals.get("__package__") or "").rsplit(".", level - 1)[0]
                full = "%s.%s" % (base, name) if name else base
            for item in ("", *(fromlist or ())):
                parts = ("%s.%s" % (full, item) if item else full).split(".")
                for end in range(1, len(parts) + 1):
                    found = ".".join(parts[:end])
                    if found in wanted:
                        report(found)
            return original(name, globals, locals, fromlist, level)

        self.replacement = builtins.__import__ = import_and_report

    def stop(self):
        if self.builtins.__import__ is self.replacement:
            self.builtins.__import__ = self.original


class Watch:
    """Watches for changes by the script to variables that modules have read before the script imports them."""

    def __init__(self, record, socket):
        self.record, self.socket = record, socket
        self.pid = os.getpid()
        self.waiting = {module for seen in record.read.values() for module in seen}
        self.waiting |= {module for module, _ in record.changed.values()}
        self.waiting |= {module for module, _, _ in record.by_library.values()}
        # Names of modules only: this one is the name before the first of them.
        self.waiting.discard("")
        self.waiting = record.with_importers(self.waiting)
        self.imported = ImportedNames(self.waiting, self.has_imported)
        self.kept = os.putenv, os.unsetenv
        put, unset = self.kept

        def putenv(key, value):
            self.check(key, value)
            put(key, value)
            respect_old_name(os.fsdecode(key))

        def unsetenv(key):
            self.check(key, None)
            unset(key)

        self.replaced = putenv, unsetenv
        self.install(self.kept, self.replaced)

    def install(self, old, new):
        # Until Python 3.8, the functions are attributes of the environment.
        for place in (os, os.environ, os.environb):
            for name, before, after in zip(("putenv", "unsetenv"), old, new):
                if getattr(place, name, None) is before:
                    setattr(place, name, after)

    def has_imported(self, module):
        if module in self.waiting:
            self.waiting.discard(module)
            for other in self.record.imports.get(module, ()):
                self.has_imported(other)
            if not self.waiting:
                self.imported.stop()
                self.install(self.replaced, self.kept)

    def check(self, key, value):
        if os.getpid() != self.pid:
            return
        name, value = os.fsdecode(key), value if value is None else os.fsdecode(value)
        modules = sorted(self.record.affected(name, value, self.waiting))
        if modules:
            self.report(name, "removes" if value is None else "sets", modules)

    def report(self, name, change, modules):
        frame = sys._getframe(3)
        while frame.f_back and frame.f_globals.get("__name__") != "__main__":
            frame = frame.f_back
        place = "line %d of %s" % (frame.f_lineno, frame.f_code.co_filename[-50:])
        # The agent shows the first 200 bytes.
        words = "%s %s %s before it imports %s, which had read it already"
        reason = words % (place, change, name[:40], ", ".join(modules)[:40])
        # One datagram, whose size is limited.
        text = "X_RAGENT_UNFIT=%s\t%s" % (" ".join(reason.split()), ",".join(modules))
        # First, because the answer is a signal, which a handler of the script would take.
        self.restore_sigterm()
        try:
            import _socket

            manager = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
            manager.connect(self.socket)
            manager.send(text.encode("utf-8", "replace")[:4000])
        except OSError as error:
            words = "ragent: %s, and this worker was a standby; failed to reach its agent: %s\n"
            os.write(2, (words % (reason, error)).encode("utf-8", "replace"))
            os._exit(FAILED)
        from time import sleep

        # The agent ends this process, as it ends all workers.
        sleep(WAIT_FOR_END)
        os._exit(FAILED)

    @staticmethod
    def restore_sigterm():
        import _signal

        try:
            _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
        except ValueError:
            # Only the main thread may do this. In another one, the process is killed after its grace period.
            pass


class Loaded:
    """The files of the modules that were loaded after the interpreter's own ones."""

    def __init__(self, searched):
        self.searched = searched
        self.installed = (os.path.dirname(os.__file__), "/site-packages/", "/dist-packages/")
        self.before = set(sys.modules)
        self.by = {}
        self.files = {}

    def note(self, module):
        """Attributes newly loaded modules to `module`, whose import has just ended."""
        for name in set(sys.modules) - self.before - set(self.by):
            self.by[name] = module
            path = getattr(sys.modules[name], "__dict__", {}).get("__file__")
            if not isinstance(path, str):
                continue
            is_installed = any(place in path for place in self.installed)
            # Of an installed package, its first file suffices: it is replaced as a whole.
            if "." not in name or not is_installed:
                self.files[name] = path, identity(path)

    def hidden(self, name):
        """Returns true if the folder of the script contains a module of this name."""
        finder = sys.modules["_frozen_importlib_external"].PathFinder
        found = finder.find_spec(name, [self.searched])
        sys.path_importer_cache.pop(self.searched, None)
        return found is not None and found.loader is not None

    def contradiction(self):
        """Returns a module of which the script would load another file, and the reason."""
        try:
            entries = os.listdir(self.searched)
        except OSError:
            entries = []
        for name in {entry.partition(".")[0] for entry in entries} & set(self.by):
            if self.hidden(name):
                return self.by[name], "it imports %s, and %s has a module of this name" % (name, self.searched)
        for name, (path, known) in self.files.items():
            if identity(path) != known:
                return self.by[name], "its file %s has changed" % path
        return None


def identity(path):
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def device():
    """Returns a device that this process has open, if there is one."""
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + number)
        except OSError:
            continue
        if target.startswith(DEVICES):
            return target
    return None


def memory():
    """Returns the memory of this process alone, in KiB."""
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))


class Signals:
    """Ignores all signals that a process can ignore, until the round starts."""

    def __init__(self):
        import _signal

        self.api = _signal
        faults = {"SIGKILL", "SIGSTOP", "SIGCHLD", "SIGCONT", "SIGSEGV", "SIGBUS", "SIGFPE"}
        faults |= {"SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS"}
        keep = {getattr(_signal, name) for name in faults}
        self.handlers = {}
        for number in _signal.valid_signals() - keep:
            handler = _signal.getsignal(number)
            # A handler of C code is None, and cannot be restored.
            if handler is not None:
                self.handlers[number] = handler
                _signal.signal(number, _signal.SIG_IGN)

    def restore(self):
        with open("/proc/self/status") as lines:
            mask = next(line for line in lines if line.startswith("SigIgn"))
        ignored = int(mask.split()[1], 16)
        for number, handler in self.handlers.items():
            # A module that has set its own handler keeps it, also if C code has set it.
            if ignored >> (number - 1) & 1:
                self.api.signal(number, handler)


def memory_file():
    """Creates a file in memory."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("output")
    # A Python that was built for glibc before 2.27, as those of conda, lacks the function.
    return os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR, 0o600)


class Standby:
    def __init__(self):
        import _socket

        self.folder = os.getcwd()

        self.environ = os.environ
        self.socket = _socket.socket(fileno=os.dup(0))
        self.peek = _socket.MSG_PEEK | _socket.MSG_DONTWAIT
        self.rights = _socket.CMSG_SPACE(3 * 4)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        # What modules print belongs to the output of the worker.
        self.kept = [memory_file() for _ in range(2)]
        for number, kept in enumerate(self.kept, 1):
            os.dup2(kept, number)
        with open("/proc/self/oom_score_adj", "r+") as score:
            self.oom_score = score.read()
            score.seek(0)
            # A waiting standby is the first that the kernel kills if memory is short.
            score.write("1000")
        with open("/proc/self/comm") as comm:
            self.comm = comm.read().rstrip("\n")

    def send(self, *lines):
        """Sends a report: its kind, and then lines of fields that are separated by tabs."""
        lines = ["\t".join(" ".join(str(field).split()) for field in line) for line in lines]
        self.socket.send("\n".join(lines).encode("utf-8", "replace")[:60000])

    def refuse(self, module, reason):
        """Ends this standby, because `module` must not be imported early."""
        self.send(["refused", module, reason])
        os._exit(0)

    def round_has_started(self):
        try:
            self.socket.recv(1, self.peek)
        except BlockingIOError:
            return False
        return True

    def wait(self):
        """Waits for the round; returns its variables, and None for those to be removed."""
        data, rights, _, _ = self.socket.recvmsg(1 << 18, self.rights)
        numbers = memoryview(rights[0][2]).cast("i").tolist()
        if len(numbers) != len(STREAMS):
            raise OSError("descriptors are missing")
        words = [os.fsdecode(word) for word in data.split(b"\0") if word]
        pairs = [word.partition("=") for word in words]
        return {name: value if is_set else None for name, is_set, value in pairs}, numbers

    def take_over(self, env, streams):
        """Gives this process the environment and the streams of the worker."""
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        for name, value in env.items():
            # A module may have replaced `os.environ` by a copy.
            for environ in (self.environ, os.environ):
                if value is not None:
                    environ[name] = value
                else:
                    environ.pop(name, None)
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write(self.oom_score)

    def print_kept(self):
        for number, kept in enumerate(self.kept, 1):
            os.lseek(kept, 0, os.SEEK_SET)
            for part in iter(lambda: os.read(kept, 1 << 16), b""):
                while part:
                    try:
                        part = part[os.write(number, part) :]
                    except BlockingIOError:
                        import select

                        select.select([], [number], [])
            os.close(kept)
        for number, (name, mode) in enumerate(STREAMS):
            reopen(getattr(sys, "__%s__" % name), number, mode, "<%s>" % name)


def reopen(stream, number, mode, name):
    """Lets a stream of Python forget the kind of file that was there at the start."""
    from _io import BufferedReader, FileIO, TextIOWrapper

    if not isinstance(stream, TextIOWrapper):
        return
    raw = FileIO(number, mode, closefd=False)
    raw.name = name
    buffer = BufferedReader(raw) if mode == "rb" else raw
    stream.__init__(
        buffer, stream.encoding, stream.errors, "\n", stream.line_buffering, stream.write_through
    )


def import_all(standby, modules, record, loaded):
    """Imports the modules; returns a line of the report for each that is missing."""
    lines = []
    for name in modules:
        if standby.round_has_started():
            # The script imports what is left, if it needs it.
            break
        top = name.partition(".")[0]
        if loaded.hidden(top):
            lines.append(["missing", name, "%s has a module of this name" % loaded.searched])
            continue
        record.module = name
        try:
            __import__(name)
        except BaseException as error:
            absent = error.name if isinstance(error, ModuleNotFoundError) else None
            # Otherwise a module that this one imports is not installed.
            if absent is None or not (name + ".").startswith(absent + "."):
                standby.refuse(name, "its import fails: %s: %s" % (type(error).__name__, error))
            lines.append(["missing", name, "not installed"])
            continue
        loaded.note(name)
        record.note_libraries()
        held = device()
        if held is not None:
            standby.refuse(name, "it opens %s while it is imported" % held)
        if os.getcwd() != standby.folder:
            standby.refuse(name, "it changes the working directory while it is imported")
    return lines


def observe(path):
    """Starts torch's worker server, if torch is imported and has it. `ragent.observe` finds it there."""
    torch = sys.modules.get("torch._C._distributed_c10d")
    if not path or not hasattr(torch, "_WorkerServer"):
        return
    try:
        server = torch._WorkerServer(path)
    except Exception:
        # The worker runs without it.
        return
    from ctypes import py_object, pythonapi

    # The end of the object would close the socket also for processes that were forked.
    pythonapi.Py_IncRef(py_object(server))
    torch._ragent_worker_server = os.getpid()


def stand_by():
    modules, searched, is_observed = take_variables()
    if modules == ["?"]:
        os.write(1, b"ragent-standby")
        os._exit(0)
    standby, signals, loaded = Standby(), Signals(), Loaded(searched)
    record = Record(modules)
    try:
        run_next_sitecustomize()
        loaded.before |= set(sys.modules)
        lines = import_all(standby, modules, record, loaded)
    except BaseException as error:
        standby.refuse(record.module, "%s: %s" % (type(error).__name__, error))
    read = [["read", module, name] for name, seen in record.read.items() for module in seen]
    contradiction = loaded.contradiction()
    if contradiction is not None:
        standby.refuse(*contradiction)
    with open("/proc/self/comm", "w") as comm:
        comm.write("ragent-standby")
    standby.send(["ready", memory()], *lines, *read)
    env, streams = standby.wait()
    record.stop()
    contradiction = record.contradiction(env) or loaded.contradiction()
    if contradiction is not None:
        # The worker is started as a new process.
        standby.refuse(*contradiction)
    if not os.path.exists(env.get("RAGENT_SOCKET") or ""):
        # Changes by the script could not be reported.
        standby.refuse("", "the socket in RAGENT_SOCKET does not exist")
    standby.take_over(env, streams)
    signals.restore()
    with open("/proc/self/comm", "w") as comm:
        comm.write(standby.comm)
    standby.print_kept()
    standby.send(["taken"])
    standby.socket.close()
    if is_observed:
        observe(env.get("TORCH_WORKER_SERVER_SOCKET"))
    Watch(record, env["RAGENT_SOCKET"])


if "RAGENT_STANDBY" in os.environ:
    try:
        stand_by()
    except BaseException:
        # Python would run the script now, without its round.
        os._exit(FAILED)
