"""A place of its own for a server that binds every interface and fixed ports.

`python alone.py INSIDE` enters a new network namespace, in which there is loopback and nothing
else, and passes connections from a free port of the outer 127.0.0.1 on to port INSIDE. So no port
of the server can clash with anybody's, and nobody but this machine reaches it (Linux, as root or
where users may make namespaces: namespaces(7), user_namespaces(7)).

It speaks in lines of JSON. At its start it says `{"port": …}`; to `{"run": [argv…], "log": path,
"env": {…}, "cwd": path}` it starts the command inside and answers `{"pid": …}`. When its input
ends, all that was started there is killed, and it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

CLONE_NEWNET, CLONE_NEWUSER = 0x40000000, 0x10000000
PR_SET_CHILD_SUBREAPER = 36
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1

libc = ctypes.CDLL(None, use_errno=True)


def enter() -> None:
    """Leave every network; what is started from here on can only speak to itself."""
    user, group = os.geteuid(), os.getegid()
    flags = CLONE_NEWNET if user == 0 else CLONE_NEWNET | CLONE_NEWUSER
    if libc.unshare(flags) != 0:
        error = os.strerror(ctypes.get_errno())
        sys.exit(f"This machine does not let a user make a network namespace: {error}.")
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))


def listener() -> socket.socket:
    """On a port that the kernel chose. A socket stays in the namespace in which it was made."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    return made


async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    except OSError:
        sink.transport.abort()  # the one side was killed: the other hears it as a reset
    finally:
        sink.close()


async def relay(inside: int, outside: socket.socket) -> asyncio.Server:
    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", inside)
        except OSError:
            writer.transport.abort()  # nobody listens
            return
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    return await asyncio.start_server(pass_on, sock=outside)


def run(order: dict[str, Any]) -> int:
    with open(order["log"], "ab") as output:
        return subprocess.Popen(
            order["run"],
            cwd=order["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **order["env"]},
            start_new_session=True,
        ).pid


def descendants(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [each for child in map(int, children) for each in (child, *descendants(child))]


def kill_all() -> None:
    """What lost its parent has become a child of this process, and is found as one."""
    while found := descendants(os.getpid()):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def main(inside: int, outside: socket.socket) -> None:
    server = await relay(inside, outside)
    print(json.dumps({"port": outside.getsockname()[1]}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps({"pid": run(json.loads(line))}), flush=True)
    server.close()


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended: no zombies
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    outer = listener()
    enter()
    try:
        asyncio.run(main(int(sys.argv[1]), outer))
    finally:
        kill_all()
