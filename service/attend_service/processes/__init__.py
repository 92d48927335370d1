"""Several serving processes on one port, so that Python's lock leaves no core idle."""

from attend_service.processes.supervisor import run_several

__all__ = ["run_several"]
