"""Run a function in a process of its own, and kill it at one of its acts, or let that one fail.

An act is a system call that opens or changes a file below one folder, whoever makes it: Python,
SQLite, NumPy or FAISS. The kernel asks a supervisor before each of them (seccomp_unotify(2)), which
counts them, names them, and answers: go on, fail with this error, or nothing, for the process is
killed. So no test sleeps and hopes to meet a moment: each moment has a number.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import os
import platform
import re
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

SECONDS = 120.0
"""The most that one process may take; after that it hangs."""

# The position of the path, or None where the first argument is an open file, by the call's name.
PATHS: Mapping[str, int | None] = {
    "write": None, "pwrite64": None, "writev": None, "fsync": None, "fdatasync": None,
    "ftruncate": None, "fallocate": None, "sendfile": None, "copy_file_range": 2,
    "open": 0, "rename": 1, "mkdir": 0, "rmdir": 0, "unlink": 0, "symlink": 1,
    "openat": 1, "mkdirat": 1, "unlinkat": 1, "renameat": 3, "renameat2": 3, "symlinkat": 2,
}  # fmt: skip
"""Of a rename it is the new name."""

_X86_64 = {
    "write": 1, "open": 2, "pwrite64": 18, "writev": 20, "sendfile": 40, "fsync": 74,
    "fdatasync": 75, "ftruncate": 77, "rename": 82, "mkdir": 83, "rmdir": 84, "unlink": 87,
    "symlink": 88, "openat": 257, "mkdirat": 258, "unlinkat": 263, "renameat": 264,
    "symlinkat": 266, "fallocate": 285, "renameat2": 316, "copy_file_range": 326,
}  # fmt: skip
_AARCH64 = {
    "write": 64, "pwrite64": 68, "writev": 66, "sendfile": 71, "fsync": 82, "fdatasync": 83,
    "ftruncate": 46, "openat": 56, "mkdirat": 34, "unlinkat": 35, "renameat": 38,
    "symlinkat": 36, "fallocate": 47, "renameat2": 276, "copy_file_range": 285,
}  # fmt: skip
NUMBERS = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(platform.machine(), {})
NAMES = {number: name for name, number in NUMBERS.items()}

WRITES = frozenset({"write", "pwrite64", "writev", "sendfile", "copy_file_range", "fallocate"})
OPENS = frozenset({"open", "openat"})
MAKES = frozenset({"mkdir", "mkdirat", "symlink", "symlinkat", "create"})
SYNCS = frozenset({"fsync", "fdatasync"})
RENAMES = frozenset({"rename", "renameat", "renameat2"})


class Act(NamedTuple):
    """A call and the file, below the folder, that it is about.

    An `openat` that may make a file is a `create`, an open file that is only read an `open`;
    a `mark` is a stage that the function itself names.
    """

    call: str
    path: str


class Fault(NamedTuple):
    """What goes wrong: an error of some calls, or a signal at any.

    Attributes:
        lasting: every later call of these fails as well, as on a disk that stays full.
    """

    name: str
    calls: frozenset[str] = frozenset()
    error: int = 0
    signal: int = 0
    lasting: bool = False

    def meets(self, act: Act) -> bool:
        """Return whether an act can go wrong in this way."""
        return bool(self.signal) or act.call in self.calls


KILL = Fault("SIGKILL", signal=signal.SIGKILL)
INTERRUPT = Fault("SIGINT", signal=signal.SIGINT)
FULL = Fault("ENOSPC", WRITES | MAKES, errno.ENOSPC, lasting=True)
BROKEN = Fault("EIO", WRITES | SYNCS | RENAMES, errno.EIO)
CROWDED = Fault("EMFILE", OPENS | {"create"}, errno.EMFILE, lasting=True)
FAULTS = (KILL, INTERRUPT, FULL, BROKEN, CROWDED)


@dataclass
class Ended:
    """A process that has ended.

    Attributes:
        status: the exit status, or minus the signal.
        output: what it wrote, and the traceback of what it raised.
        error: the name of the class of what it raised, if anything.
    """

    status: int
    output: str
    acts: list[Act] = field(default_factory=list)
    error: str = ""


def available(folder: Path) -> bool:
    """Return whether this system lets a process watch the calls of another."""
    if not NUMBERS:
        return False
    return run(lambda: None, folder / "output.txt", root=folder).status == 0


def run(
    function: Callable[[], object],
    output: Path,
    *,
    root: Path | None = None,
    fault: Fault | None = None,
    at: int = -1,
    prepare: Callable[[], object] = lambda: None,
) -> Ended:
    """Call a function in a forked process, and wait for its end.

    Args:
        output: a file for what the process writes.
        root: the folder whose acts are counted; none are if None.
        fault: what happens at the act number `at`, from 0.
        prepare: called in the process first, and not watched: a limit of it, for example.
    """
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        ours.close()
        _behave(function, output, theirs if root is not None else None, prepare)
    theirs.close()
    with ours:
        if root is None:
            _wait(child)
            watched: list[Act] = []
        else:
            watched = _Supervisor(child, ours, root, fault, at).watch()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    written = output.read_text(errors="replace")
    raised = re.findall(r"^raised (\w+)$", written, re.MULTILINE)
    return Ended(status, written, watched, raised[-1] if raised else "")


def _behave(
    function: Callable[[], object],
    output: Path,
    supervisor: socket.socket | None,
    prepare: Callable[[], object],
) -> NoReturn:
    """Be the process."""
    status = 70
    try:
        # A test that runs in the background may have been told to ignore interrupts.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
        prepare()
        if supervisor is not None:
            socket.send_fds(supervisor, [b"1"], [_listener()])
        function()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        traceback.print_exc()
        print(f"raised {type(error).__name__}", file=sys.stderr, flush=True)
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(child: int) -> None:
    """Wait until a process has ended, and leave its status."""
    descriptor = os.pidfd_open(child)
    try:
        if not select.select([descriptor], [], [], SECONDS)[0]:
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(descriptor)


# -- the supervisor -------------------------------------------------------------------------

RECEIVE, SEND = 0xC0502100, 0xC0182101
"""SECCOMP_IOCTL_NOTIF_RECV and _SEND, for structures of 80 and 24 bytes."""

GO_ON = 1
"""SECCOMP_USER_NOTIF_FLAG_CONTINUE."""

NOTICE, ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")

TEMPORARY = [
    (re.compile(r"(making|dropped|restored)-[0-9a-f]{16}"), r"\1"),
    (re.compile(r"writing-\w{8}"), "writing"),
    (re.compile(r"/\d+(?=/|$)"), "/N"),
]
"""Names that are drawn, and what stands for them."""


class _Supervisor:
    """Answers for one process."""

    def __init__(
        self, child: int, connection: socket.socket, root: Path, fault: Fault | None, at: int
    ) -> None:
        self.child, self.root, self.fault, self.at = child, f"{root}/", fault, at
        self.connection = connection
        self.acts: list[Act] = []

    def watch(self) -> list[Act]:
        """Answer until the process has ended, and return its acts."""
        ended = os.pidfd_open(self.child)
        _, descriptors, _, _ = socket.recv_fds(self.connection, 1, 1)
        if not descriptors:  # it never came so far
            _wait(self.child)
            os.close(ended)
            return self.acts
        (listener,) = descriptors
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(ended, select.POLLIN)
        deadline = time.monotonic() + SECONDS
        try:
            while True:
                ready = dict(poll.poll(1000))
                if ready.get(listener, 0) & select.POLLIN:
                    self._answer(listener)
                elif ended in ready:
                    return self.acts
                if time.monotonic() > deadline:
                    os.kill(self.child, signal.SIGKILL)
                    raise RuntimeError(f"It hangs after {self.acts[-3:]}, {self.fault} {self.at}.")
        finally:
            os.close(listener)
            os.close(ended)

    def _answer(self, listener: int) -> None:
        notice = bytearray(NOTICE.size)
        try:
            fcntl.ioctl(listener, RECEIVE, notice)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):  # the process was killed meanwhile
                return
            raise
        id, thread, _, number, _, _, *arguments = NOTICE.unpack(notice)
        act = self._act(thread, NAMES[number], arguments)
        failing = 0
        if act is not None:
            self.acts.append(act)
            failing = self._strike(act)
        flags = 0 if failing else GO_ON
        try:
            fcntl.ioctl(listener, SEND, ANSWER.pack(id, 0, -failing, flags))
        except OSError as error:
            if error.errno != errno.ENOENT:  # a signal has interrupted the call
                raise

    def _strike(self, act: Act) -> int:
        """Return the error of an act, 0 for none; send the signal where that is due."""
        fault, now = self.fault, len(self.acts) - 1
        if fault is None or now < self.at:
            return 0
        if fault.signal:
            if now == self.at:
                os.kill(self.child, fault.signal)
            return 0
        return fault.error if now == self.at or (fault.lasting and fault.meets(act)) else 0

    def _act(self, thread: int, call: str, arguments: Sequence[int]) -> Act | None:
        """Return the act that a call is; None where it is about no file below the folder."""
        place = PATHS[call]
        try:
            if place is None or call == "copy_file_range":
                path = os.readlink(f"/proc/{thread}/fd/{arguments[place or 0]}")
            else:
                path = self._path(thread, call, arguments, place)
        except OSError:
            return None
        if not path.startswith(self.root):
            return None
        if call in OPENS:
            flags = arguments[1 if call == "open" else 2]
            call = "create" if flags & os.O_CREAT and not os.path.exists(path) else "open"
        path = path.removeprefix(self.root)
        if path == MARKS:
            return None if call != "write" else Act("mark", self._text(thread, arguments[1]))
        for pattern, name in TEMPORARY:
            path = pattern.sub(name, path)
        return Act(call, path)

    def _path(self, thread: int, call: str, arguments: Sequence[int], place: int) -> str:
        path = self._text(thread, arguments[place])
        if path.startswith("/"):
            return path
        folder = ctypes.c_int32(arguments[place - 1] & 0xFFFFFFFF).value if place else HERE
        if call in ("rename", "symlink") or folder == HERE:
            return os.path.join(os.readlink(f"/proc/{thread}/cwd"), path)
        return os.path.join(os.readlink(f"/proc/{thread}/fd/{folder}"), path)

    @staticmethod
    def _text(thread: int, address: int) -> str:
        with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            return memory.read(256).split(b"\0")[0].decode(errors="replace")


HERE = -100
"""AT_FDCWD."""

MARKS = "marks"
"""The file, below the folder, to which a function writes the names of its stages."""


def marker(root: Path) -> Callable[[str], object]:
    """Return a function that names a stage, as an act by itself."""
    descriptor = os.open(root / MARKS, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return lambda stage: os.write(descriptor, stage.encode() + b"\0")


# -- the filter -----------------------------------------------------------------------------

LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
"""BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ | BPF_K, and BPF_RET | BPF_K."""

ALLOW, NOTIFY = 0x7FFF0000, 0x7FC00000


def _listener() -> int:
    """Have the kernel ask before each of the calls, and return the descriptor where it asks."""
    numbers = sorted(NUMBERS.values())
    code = [(LOAD, 0, 0, 0)]
    code += [(EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    code += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, NOTIFY)]
    content = array.array("Q", b"".join(struct.pack("=HBBI", *line) for line in code))
    program = struct.pack("@HP", len(code), content.buffer_info()[0])
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_filter, new_listener = 38, 1, 8
    if libc.prctl(no_new_privileges, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    seccomp = {"x86_64": 317, "aarch64": 277}[platform.machine()]
    syscall: Any = libc.syscall
    descriptor = int(syscall(seccomp, set_filter, new_listener, program))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return descriptor
