"""The command `attend`: the library's commands, and those of the server."""

from __future__ import annotations

from attend.cli import main
from attend_service.__main__ import config, serve
from attend_service.security.command import keys

for command in (serve, config, keys):
    main.add_command(command)
