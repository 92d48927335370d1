"""Examples: files that say which documents answer which queries → examples to teach.

```
source = open_source("labels.csv")
columns = guess_columns(source)
gathered = gather(read_table(source, columns), unfit)
```

Judgements (`read_judgements`), tables (`read_table`) and click logs (`read_clicks`) all give
`Example`, or a `Problem` with a place and a sentence for each row that is none.
"""

from attend.examples.clicks import propensity, read_clicks
from attend.examples.columns import Columns, describe_columns, guess_columns
from attend.examples.gather import Gathered, gather
from attend.examples.judgements import read_judgements
from attend.examples.table import read_table
from attend.examples.types import MAX_WEIGHT, Asked, Example, same_question

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
