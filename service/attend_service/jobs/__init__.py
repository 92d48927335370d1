"""Work that takes longer than a request: taken in, run one at a time, and told about.

The book holds every job, so that a restart forgets none; the worker runs them.
"""

from attend_service.jobs.desk import Jobs, UnknownJob
from attend_service.jobs.job import Job, Progress, QueueFull, State, Trainer

__all__ = ["Job", "Jobs", "Progress", "QueueFull", "State", "Trainer", "UnknownJob"]
