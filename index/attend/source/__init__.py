"""Source: a file, folder, table or standard input → rows → documents.

```
source = open_source("books.csv")
rows = sample(source)
fields = guess(rows, text=("title",), source=source)
for item in documents(source, fields):  # RowItem(place, document) | RowProblem(place, reason)
    ...
```
"""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from attend.source.columns import FieldMap, describe, documents, guess
    from attend.source.files import TableFormat
    from attend.source.opening import open_source
    from attend.source.rows import Row, RowItem, RowProblem, Source, sample

__all__ = [
    "FieldMap",
    "Row",
    "RowItem",
    "RowProblem",
    "Source",
    "TableFormat",
    "describe",
    "documents",
    "guess",
    "open_source",
    "sample",
]
# Imported when they are used: a request's fields need the cells of rows, and no reader of files.
__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "columns": ["FieldMap", "describe", "documents", "guess"],
        "files": ["TableFormat"],
        "opening": ["open_source"],
        "rows": ["Row", "RowItem", "RowProblem", "Source", "sample"],
    },
)
