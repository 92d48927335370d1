"""Interactions: which users met which documents, from files and requests into a collection.

```
source = open_source("ratings.csv")
columns = guess_columns(source)
gathered = gather(read_interactions(source, columns), collection.store.rows_of)
record(collection, gathered.interactions)
```
"""

from attend.api.recommend import InteractionItem
from attend.interactions.columns import Columns, describe_columns, guess_columns
from attend.interactions.reading import Gathered, Placed, gather, read_file, read_interactions
from attend.interactions.recording import Recorded, record

__all__ = [
    "Columns",
    "Gathered",
    "InteractionItem",
    "Placed",
    "Recorded",
    "describe_columns",
    "gather",
    "guess_columns",
    "read_file",
    "read_interactions",
    "record",
]
