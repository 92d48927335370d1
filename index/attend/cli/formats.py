"""The options of commands that read text files: their delimiter, encoding and header."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from attend.api.base import Request
from attend.source import TableFormat
from attend.source.files import delimiter_of, encoding_of


class FormatOptions(Request):
    """The format of text files, where it is not to be detected."""

    delimiter: Annotated[str | None, "C", AfterValidator(delimiter_of)] = None
    """The character between the cells of a table, such as ';' or tab; else detected. With it, a
    file of any ending is a table."""
    encoding: Annotated[str | None, "NAME", AfterValidator(encoding_of)] = None
    """The encoding of text files, such as cp1252 or utf-16; else detected."""
    no_header: bool = False
    """The first line of a table is a row; its columns are column_1, column_2 and so on."""

    def format(self) -> TableFormat:
        """Return the options as `open_source` takes them."""
        return TableFormat(self.delimiter, self.encoding, header=not self.no_header)
