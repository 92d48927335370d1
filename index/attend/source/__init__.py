"""Source: anything on disk or standard input → rows → documents.

```
source = open_source("books.csv")
rows = sample(source)
fields = guess(rows, text=("title",), source=source)
for item in documents(source, fields):  # Placed(place, document) | Problem(place, reason)
    ...
```
"""

from attend.source.guess import FieldMap, describe, guess
from attend.source.mapping import Placed, documents
from attend.source.opening import open_source
from attend.source.rows import LOOKAHEAD_ROWS, SAMPLE_ROWS, Problem, Row, Source, sample

__all__ = [
    "LOOKAHEAD_ROWS",
    "SAMPLE_ROWS",
    "FieldMap",
    "Placed",
    "Problem",
    "Row",
    "Source",
    "describe",
    "documents",
    "guess",
    "open_source",
    "sample",
]
