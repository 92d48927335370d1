"""The command line: `attend build | search | evaluate | info | …`.

Results go to stdout, progress and warnings to stderr. Exit status: 0 success, 1 failure,
2 usage error, 3 success without some rows that could not be used, 130 interrupted.
"""

from attend.cli import build, learning, library, search  # noqa: F401 # they add their commands
from attend.cli.common import main

__all__ = ["main"]
