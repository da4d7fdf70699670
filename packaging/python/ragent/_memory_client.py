"""Asks the agent for buffers of checkpoints in memory, and maps them.

The agent listens at the path in `RAGENT_MEMORY_SOCKET`. A process has one connection, which it opens for the first request. A request
and its answer are one packet each, a JSON object of at most 4,096 bytes. An answer may carry one descriptor:

| request | answer |
|---|---|
| `buffer`: step, bytes, kind, replicated | a memfd to write into, its number and size; or `refused` and why |
| `saved`: step, bytes | `taken`, or `refused` and why |
| `load`: kind | `step` null; or step, bytes, replicated, and a memfd to read; or step and `resharded` |
| `ranges`: step, group_rank, sources, ranges | bytes, and a memfd with the ranges one after the other; or `refused` and why |
| `newest` | the newest step that is whole, or null |
| `unusable`: step, reason | `noted` |

`resharded` means that a DCP checkpoint was saved with other ranks on the nodes. On rank 0 the answer has a memfd with a list of what each node
has saved and who gives it, and its `bytes`. Each rank then asks for ranges. A range is the local rank of the worker that has saved it, an
offset in what this worker has saved, and a length.

If the connection breaks, or an answer makes no sense, memory is off for the rest of this process. The agent reuses a few buffers,
so this module keeps their mappings: the pages of a new one would have to be found again for each save.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import socket
import struct
import sys
import threading
import warnings
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from ._memory_errors import DamagedError
from ._users import check_peer

_MAX_PACKET = 4096
_MAX_REASON = 200
# The agent has two buffers for each worker, and a third one while a size changes.
_MAX_MAPPINGS = 3
# The agent answers each request but `load` and `ranges` within 120 s.
_PATIENCE = 180.0
# The seconds of waiting for a buffer after which there is a warning.
_SILENCE = 5.0
# Buffers are asked for in multiples of this, so that objects whose size varies by some bytes do not need a new one.
_GRAIN = 1 << 20

_get = os.environ.get
# A process that is forked from this one has another number, and is not a worker.
_process = os.getpid()


class Mapping:
    """A buffer of the agent in the memory of this process. It is unmapped when nothing refers to it any more."""

    def __init__(self, descriptor: int, size: int, number: int = -1, is_writable: bool = False) -> None:
        """Maps the file, and closes the descriptor."""
        try:
            if not 0 < size <= os.fstat(descriptor).st_size:
                raise ValueError(f"the file of a buffer has no {size} bytes")
            self.number = number
            self.size = size
            protection = mmap.PROT_READ | mmap.PROT_WRITE if is_writable else mmap.PROT_READ
            self.memory = mmap.mmap(descriptor, size, mmap.MAP_SHARED, protection)
        finally:
            os.close(descriptor)
        # The tensors in it, and the layout that they have.
        self._views: Optional[Tuple[Any, List[Any]]] = None
        # CUDA's functions and the address, or nothing if CUDA has refused.
        self._registered: Optional[Tuple[Any, ...]] = None

    def views_of(self, layout: Any) -> List[Any]:
        """Returns the tensors of the layout. They are made once for each layout."""
        if self._views is None or self._views[0] is not layout:
            self._views = (layout, layout.views(self.memory))
        return self._views[1]

    def register(self) -> None:
        """Lets CUDA copy to this memory directly. If CUDA refuses, copies go through memory of the driver."""
        if self._registered is None:
            torch: Any = sys.modules["torch"]
            runtime = torch.cuda.cudart()
            address = torch.frombuffer(self.memory, dtype=torch.uint8).data_ptr()
            has_succeeded = int(runtime.cudaHostRegister(address, self.size, 0)) == 0
            self._registered = (runtime, address) if has_succeeded else ()
            if not has_succeeded:
                # CUDA keeps the error, and torch would raise it for the next kernel that it starts.
                with contextlib.suppress(RuntimeError):
                    torch.zeros(1, device="cuda")

    def release(self) -> None:
        """Ends the registration with CUDA, and forgets the views."""
        registered, self._registered = self._registered, None
        if registered:
            runtime, address = registered
            runtime.cudaHostUnregister(address)
        self._views = None


class Loaded(NamedTuple):
    """A checkpoint of this rank."""

    step: int
    is_replicated: bool
    mapping: Mapping


class Resharded(NamedTuple):
    """A checkpoint of another number of ranks."""

    step: int
    parts: Optional[bytes]
    """On rank 0, a JSON list of what each node has saved and who gives it."""


class BusyError(RuntimeError):
    """A signal handler has called this module while the same thread waits in it."""


class _Lock:
    """A lock that its own thread does not wait for: it would wait for ever."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: Optional[int] = None

    def is_own(self) -> bool:
        """Returns true if this thread holds it, and a signal handler has interrupted it."""
        return self._owner == threading.get_ident()

    def __enter__(self) -> None:
        if self.is_own():
            raise BusyError("failed to ask for memory: a signal handler has interrupted another request; save in the training loop")
        self._lock.acquire()
        self._owner = threading.get_ident()

    def __exit__(self, *_: Any) -> None:
        self._owner = None
        self._lock.release()


class Client:
    """The connection of this process to its agent."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_off = False
        self._socket: Optional[socket.socket] = None
        self._lock = _Lock()
        self._mappings: List[Mapping] = []
        self._warned: Set[str] = set()

    def buffer(self, step: int, size: int, kind: str, is_replicated: bool) -> Optional[Mapping]:
        """Returns a buffer for a checkpoint of `size` bytes. `None` if the agent refuses it, or memory is off."""
        needed = -(-size // _GRAIN) * _GRAIN
        with self._lock:
            answer, descriptor = self._ask(
                {"ask": "buffer", "step": step, "bytes": needed, "kind": kind, "replicated": is_replicated}
            )
            if "buffer" not in answer:
                _close(descriptor)
                return None
            try:
                number, given = _whole(answer, "buffer"), _whole(answer, "size")
                if given < needed or descriptor is None:
                    raise ValueError(f"a buffer of {needed} bytes was asked for, and the answer is {answer!r}")
                return self._mapping(descriptor, number, given)
            except (OSError, ValueError) as error:
                self._turn_off(error)
                return None

    def _mapping(self, descriptor: int, number: int, size: int) -> Mapping:
        for place, known in enumerate(self._mappings):
            if known.number == number:
                del self._mappings[place]
                if known.size == size:
                    os.close(descriptor)
                    self._mappings.append(known)
                    return known
                # The agent has replaced it.
                known.release()
                break
        while len(self._mappings) >= _MAX_MAPPINGS:
            self._mappings.pop(0).release()
        mapping = Mapping(descriptor, size, number, is_writable=True)
        self._mappings.append(mapping)
        return mapping

    def saved(self, step: int, size: int) -> bool:
        """Reports that the buffer for this step is filled. True if the agent has taken it."""
        with self._lock:
            answer, descriptor = self._ask({"ask": "saved", "step": step, "bytes": size})
            _close(descriptor)
            return answer.get("taken") is True

    def load(self, kind: str) -> Optional[Union[Loaded, Resharded]]:
        """Returns the checkpoint to continue from. `None` if nothing is in memory."""
        with self._lock:
            # The agent ends the wait, as it may fetch the content from another node. A rank that ended it would begin at another
            # step than all others.
            answer, descriptor = self._ask({"ask": "load", "kind": kind}, patience=None)
            step = answer.get("step")
            if "step" not in answer:
                _close(descriptor)
                # Other ranks may have loaded a step, so this one must not begin from disk.
                raise DamagedError(
                    f"failed to ask the agent for the checkpoint in memory at `{self.path}`; another start may load it"
                )
            if not isinstance(step, int):
                _close(descriptor)
                return None
            try:
                is_resharded = answer.get("resharded") is True
                if descriptor is None:
                    if is_resharded:
                        return Resharded(step, None)
                    raise ValueError("the answer has no descriptor")
                mapping = Mapping(descriptor, _whole(answer, "bytes"))
                if is_resharded:
                    return Resharded(step, mapping.memory[: mapping.size])
                return Loaded(step, answer.get("replicated") is True, mapping)
            except (OSError, ValueError) as error:
                # Other ranks may have theirs, so this one must not begin at another step.
                damage = DamagedError(f"failed to map step {step} in memory: {error}")
        self.unusable(step, damage)
        raise damage

    def ranges(self, step: int, group_rank: int, sources: Sequence[str], ranges: Sequence[Tuple[int, int, int]]) -> Mapping:
        """Returns these ranges of what a node has saved, one after the other."""
        request = {"ask": "ranges", "step": step, "group_rank": group_rank, "sources": sources, "ranges": ranges}
        with self._lock:
            # The agent ends the wait: if no source gives them, the round ends.
            answer, descriptor = self._ask(request, patience=None)
        size = sum(length for _, _, length in ranges)
        try:
            if descriptor is None or answer.get("bytes") != size:
                _close(descriptor)
                broken = f"the connection to the agent at `{self.path}` has broken; let the script end, so that all ranks start again"
                raise ValueError(answer.get("refused") or (f"the agent has answered {answer!r}" if answer else broken))
            return Mapping(descriptor, size)
        except (OSError, ValueError) as error:
            raise DamagedError(f"failed to read step {step} of node {group_rank} from memory: {error}") from None

    def loaded(self) -> None:
        """Reports that this process reads no more of what it was given."""
        with self._lock:
            _, descriptor = self._ask({"ask": "loaded"})
            _close(descriptor)

    def newest(self) -> Optional[int]:
        """Returns the newest step that is whole."""
        if self._lock.is_own():
            return None
        with self._lock:
            answer, descriptor = self._ask({"ask": "newest"})
            _close(descriptor)
            step = answer.get("step")
            return step if isinstance(step, int) else None

    def unusable(self, step: int, error: BaseException) -> None:
        """Reports that this process cannot continue from the checkpoint that it was given."""
        reason = " ".join(str(error).split()) or type(error).__name__
        short = reason.encode(errors="replace")[:_MAX_REASON].decode(errors="ignore")
        with self._lock:
            _, descriptor = self._ask({"ask": "unusable", "step": step, "reason": short})
            _close(descriptor)

    def _ask(
        self, request: Dict[str, Any], patience: Optional[float] = _PATIENCE
    ) -> Tuple[Dict[str, Any], Optional[int]]:
        """Returns the answer and its descriptor. The answer is empty if memory is off, or is turned off by an error."""
        if self.is_off:
            return {}, None
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
                self._socket.settimeout(_PATIENCE)
                self._socket.connect(self.path)
                # Another user may have put a socket there, where others may write to the folder.
                check_peer(self._socket)
            self._socket.settimeout(patience)
            self._socket.sendall(json.dumps(request, ensure_ascii=False).encode())
            # The first two checkpoints wait for no other rank.
            if request["ask"] == "buffer" and len(self._mappings) > 1 and "waits" not in self._warned:
                poll = select.poll()
                poll.register(self._socket, select.POLLIN)
                if not poll.poll(_SILENCE * 1000):
                    self._warned.add("waits")
                    _warn(
                        f"rank {_get('RANK', '0')} has waited {_SILENCE:g} s in `save` of step {request['step']}: another rank has not "
                        "saved an earlier step, or a copy to another node is slow; call `save` on every rank with the same steps; "
                        "`ragent status` has a line `memory:`"
                    )
            answer, descriptor = self._receive(self._socket)
        except (OSError, ValueError) as error:
            self._turn_off(error)
            return {}, None
        except BaseException:
            # Of a signal handler. The next request would get the answer to this one.
            self._close()
            raise
        why = answer.get("refused")
        if why is not None and request["ask"] == "buffer":
            # The agent has freed what it kept, and mappings would keep the memory.
            self._release()
        if why is not None and request["ask"] != "ranges" and why not in self._warned:
            self._warned.add(str(why))
            _warn(f"failed to save a checkpoint in memory: {why}; training goes on without it")
        return answer, descriptor

    def _receive(self, connection: socket.socket) -> Tuple[Dict[str, Any], Optional[int]]:
        room = socket.CMSG_SPACE(4 * struct.calcsize("i"))
        packet, control, _, _ = connection.recvmsg(_MAX_PACKET + 1, room, socket.MSG_CMSG_CLOEXEC)
        descriptors: List[int] = []
        for level, kind, data in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                count = len(data) // struct.calcsize("i")
                descriptors.extend(struct.unpack(f"{count}i", data[: count * struct.calcsize("i")]))
        try:
            if not packet:
                raise ConnectionError("the agent has closed the connection")
            if len(packet) > _MAX_PACKET or len(descriptors) > 1:
                raise ValueError("the answer is too long")
            answer = json.loads(packet)
            if not isinstance(answer, dict):
                raise ValueError(f"the answer is {answer!r}")
        except (OSError, ValueError, RecursionError) as error:
            for descriptor in descriptors:
                os.close(descriptor)
            raise ValueError(str(error)) from None
        return answer, descriptors[0] if descriptors else None

    def _turn_off(self, error: Exception) -> None:
        self._close()
        _warn(
            f"failed to ask the agent for memory at `{self.path}`: {error}; this process saves no more checkpoints in memory: "
            "read the log of the agent"
        )

    def _close(self) -> None:
        self.is_off = True
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._release()

    def _release(self) -> None:
        for mapping in self._mappings:
            mapping.release()
        self._mappings.clear()


_client: Optional[Client] = None
# Held from the request for a buffer to the report that it is filled.
save_lock = _Lock()


def client(loads: bool = False) -> Optional[Client]:
    """Returns the connection to the agent. `None` if there is no agent, memory is off, or this process was forked.

    If the process `loads` and its connection has broken, raises `DamagedError`: other ranks may load a step, so this one must
    not begin from disk.
    """
    global _client
    # A process that imports modules before it becomes a worker has the variable only then.
    path = _get("RAGENT_MEMORY_SOCKET")
    if not path or os.getpid() != _process:
        return None
    if _client is None or _client.path != path:
        _client = Client(path)
    if _client.is_off and loads:
        raise DamagedError(f"failed to ask the agent for the checkpoint in memory: the connection to `{path}` has broken")
    return None if _client.is_off else _client


def _whole(answer: Dict[str, Any], name: str) -> int:
    value = answer.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"its {name} is {value!r}")
    return value


def _close(descriptor: Optional[int]) -> None:
    if descriptor is not None:
        os.close(descriptor)


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=5)
