"""Jobs, work that takes longer than a request: the job store remembers them, one runs at a time.

```
store.py     every job on disk
queue.py     jobs asked for, looked up, cancelled and run
training.py  the process in which a training runs
```
"""

from attend_service.jobs.queue import Jobs, Trainer, UnknownJob
from attend_service.jobs.store import Job, JobSummary, QueueFull, State

__all__ = ["Job", "JobSummary", "Jobs", "QueueFull", "State", "Trainer", "UnknownJob"]
