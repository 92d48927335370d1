"""Who may do what, and how much of it: keys, scopes, origins, headers, limits.

```
keys.py      API keys on disk, and whose a key is
access.py    the need of each operation against the key of each request
browsers.py  what browsers are told, and what pages of other origins may do: nothing
limits.py    how large, how deep, how slow, how many
command.py   attend keys
```
"""
