"""Snapshots: collections as one file, taken while others write, and collections made of it.

```
manifest.json                             what is in it, with sizes and checksums; it comes first
collections/NAME/documents.db             the database, as it was at one moment
collections/NAME/keys/<layout>/…          the index that was current, unless it is left out
```

A plain tar. What comes out of it is written only under names that are known beforehand, and is
a collection only once all of it was read and found to be what was written.
"""

from attend.snapshot.contents import Contents
from attend.snapshot.restoring import restore
from attend.snapshot.saving import save

__all__ = ["Contents", "restore", "save"]
