"""The command line: `attend build | search | evaluate | info | …`.

Results go to stdout, progress and warnings to stderr. Exit status: 0 done, 1 failed,
2 called wrongly, 130 interrupted.
"""

from attend.cli.main import main

__all__ = ["main"]
