"""A real Milvus cluster of twelve processes on this machine, of which one can be killed.

The runner is `shared/milvus-cluster/cluster.py` beside the project, or what the environment's
`ATTEND_MILVUS_CLUSTER` names. `make test-cluster` installs what it needs into `.venv-cluster`, and
etcd beside that; both can be named, too (`ATTEND_CLUSTER_PYTHON`, `ATTEND_ETCD`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.milvus.server import Alone, Unavailable, answers, wait_until
from tests.places import ROOT

INSIDE = 29530
READY_SECONDS = 300.0

RUNNER = Path(
    os.environ.get("ATTEND_MILVUS_CLUSTER")
    or ROOT.parent / "shared" / "milvus-cluster" / "cluster.py"
)
PYTHON = Path(os.environ.get("ATTEND_CLUSTER_PYTHON") or ROOT / ".venv-cluster" / "bin" / "python")
ETCD = Path(os.environ.get("ATTEND_ETCD") or ROOT / ".venv-cluster" / "etcd" / "usr" / "bin")


class Cluster:
    """A cluster that answers.

    Raises:
        Unavailable: something that it needs is not there, or it did not start; says what.
    """

    def __init__(self, folder: Path) -> None:
        _check()
        self.folder = folder
        self._home = folder / "home"
        self._alone = Alone(INSIDE)
        self._log = folder / "runner.log"
        path = f"{ETCD}{os.pathsep}{os.environ['PATH']}"
        self._alone.run([PYTHON, RUNNER, "up", self._home], self._log, PATH=path)

    @property
    def engine(self) -> str:
        """As `--engine` takes it."""
        return f"milvus://127.0.0.1:{self._alone.port}"

    def wait_until_ready(self) -> None:
        address = f"http://127.0.0.1:{self._alone.port}"
        if not wait_until(lambda: "ready:" in self._said() and answers(address), READY_SECONDS):
            raise Unavailable(
                f"The cluster did not answer within {READY_SECONDS:.0f} s: {self._said()[-2000:]}"
            )

    def kill(self, role: str) -> None:
        """SIGKILL to one role, such as `querynode2`."""
        os.kill(json.loads((self._home / "pids.json").read_text())[role], signal.SIGKILL)

    def close(self) -> None:
        self._alone.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _said(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder)
    try:
        cluster.wait_until_ready()
        yield cluster
    finally:
        cluster.close()


def _check() -> None:
    for path, what, mend in (
        (RUNNER, "The cluster's runner", "name it in ATTEND_MILVUS_CLUSTER"),
        (PYTHON, "The cluster's Python", "run 'make test-cluster', which installs it"),
        (ETCD / "etcd", "etcd", "run 'make test-cluster', or name its folder in ATTEND_ETCD"),
    ):
        if not path.exists():
            raise Unavailable(f"{what} is not at {path}; {mend}.")
