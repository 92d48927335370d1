"""Source: a file, folder, table or standard input → rows → documents.

```
source = open_source("books.csv")
rows = sample(source)
fields = guess(rows, text=("title",), source=source)
for item in documents(source, fields):  # RowItem(place, document) | RowProblem(place, reason)
    ...
```
"""

from attend.source.columns import (
    Columns,
    FieldMap,
    Layout,
    describe,
    guess,
    guess_columns,
)
from attend.source.mapping import documents
from attend.source.opening import open_source
from attend.source.rows import (
    LOOKAHEAD_ROWS,
    SAMPLE_ROWS,
    Row,
    RowItem,
    RowProblem,
    Source,
    Unusable,
    read_rows,
    sample,
)

__all__ = [
    "LOOKAHEAD_ROWS",
    "SAMPLE_ROWS",
    "Columns",
    "FieldMap",
    "Layout",
    "Row",
    "RowItem",
    "RowProblem",
    "Source",
    "Unusable",
    "describe",
    "documents",
    "guess",
    "guess_columns",
    "open_source",
    "read_rows",
    "sample",
]
