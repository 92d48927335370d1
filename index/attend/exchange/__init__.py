"""Exchange: projections to and from the files of other libraries, and collections in one file.

A learned pair of matrices is exported as a sentence-transformers model, or as the projection's own
bytes, which are imported again. All of it is safetensors and JSON: reading runs no code. A backup
is one plain tar, taken while others write:

```
manifest.json                             the contents, with sizes and checksums; it comes first
collections/NAME/documents.db             the database, as it was at one moment
```

Its databases are compared with their checksums, and their rows are copied into new databases and
checked, before any becomes a collection. Indexes are built again from them.
"""
