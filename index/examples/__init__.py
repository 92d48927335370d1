"""Examples: files that say which documents answer which queries → examples to teach.

```
source = open_source("labels.csv")
columns = guess_columns(source)
gathered = gather(read_table(source, columns), unfit)
```

Judgements (`read_judgements`), tables (`read_table`) and click logs (`read_clicks`) all give
`Example`, or a `Problem` with a place and a sentence for each row that is none.
"""

from index.examples.clicks import propensity, read_clicks
from index.examples.columns import Columns, describe_columns, guess_columns
from index.examples.gather import Gathered, gather
from index.examples.judgements import read_judgements
from index.examples.table import read_table
from index.examples.types import MAX_WEIGHT, Asked, Example, same_question

__all__ = [
    "MAX_WEIGHT",
    "Asked",
    "Columns",
    "Example",
    "Gathered",
    "describe_columns",
    "gather",
    "guess_columns",
    "propensity",
    "read_clicks",
    "read_judgements",
    "read_table",
    "same_question",
]
