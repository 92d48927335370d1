"""Documents of other formats as Markdown: PDF, Word, HTML and e-mail.

markitdown converts them (MIT, offline): one interface for all of these, while docling needs models
from the network and PyMuPDF is under the AGPL. Only the converter of a file's own format is used.
markitdown reads no .eml: Python's e-mail parser does, and needs the converter for HTML alone.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import EmailPolicy
from functools import cache, lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from attend.core.types import Json
from attend.source.rows import SAMPLE_ROWS, Unusable

CONVERTERS = {
    ".pdf": "PdfConverter",
    ".docx": "DocxConverter",
    ".html": "HtmlConverter",
    ".htm": "HtmlConverter",
    ".msg": "OutlookMsgConverter",
}
"""Ending → the class of `markitdown.converters`."""

MAX_HEADER = 2000
"""Characters of an e-mail's header that are read: Python's parser takes quadratic time for it."""

SECONDS, SECONDS_PER_MIB = 60.0, 10.0
"""The time for one file: its parsers have regular expressions that take quadratic time, too."""

EMAIL = ".eml"
CONVERTIBLE = frozenset({*CONVERTERS, EMAIL})


class MissingExtra(Unusable):
    """The converter is not installed."""


class Converted(NamedTuple):
    """A document as Markdown, with its title and what else its format declares."""

    text: str
    title: str | None = None
    fields: Mapping[str, Json] = {}


def convert(path: Path) -> Converted:
    """Return a document as Markdown.

    Raises:
        MissingExtra: the extra `documents` is not installed.
        Unusable: the file cannot be converted, or has no text.
    """
    # A sample and a build read the same files; a conversion takes up to seconds.
    return _converted(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=SAMPLE_ROWS)
def _converted(path: Path, _modified: int) -> Converted:
    return convert_bytes(path.read_bytes(), path.suffix.lower())


def convert_bytes(data: bytes, ending: str) -> Converted:
    """Return the contents of a file with an ending as Markdown; raises as `convert` does."""
    reader: Callable[[bytes, str], Converted] = _email if ending == EMAIL else _markdown
    try:
        with _limited(SECONDS + SECONDS_PER_MIB * len(data) / 2**20):
            document = reader(data, ending)
    except Unusable:
        raise
    except Exception as error:  # of any of the parsers, for a broken file
        reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise Unusable(
            f"The file cannot be read as {ending} ({reason.rstrip('.')}). Open it in a program for "
            f"such files and save it again."
        ) from None
    if not document.text:
        advice = "Recognise the text of a scan (OCR) first" if ending == ".pdf" else "Remove it"
        raise Unusable(f"The file has no text. {advice}.")
    return document


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise Unusable after some time; only in the main thread, where alone Python can do that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> NoReturn:
        raise Unusable(
            f"The file was not read within {seconds:.0f} s. Open it in a program for such files "
            f"and save it as text."
        )

    before = signal.signal(signal.SIGALRM, stop)
    # Again and again, as a parser may catch it.
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _markdown(data: bytes, ending: str) -> Converted:
    result = _converter(ending).convert(BytesIO(data), _stream_info()(extension=ending))
    title = result.title.strip() if result.title else None
    return Converted(_tidy(result.markdown), title)


class _BriefHeaders(EmailPolicy):
    def header_fetch_parse(self, name: str, value: str) -> Any:
        return super().header_fetch_parse(name, value[:MAX_HEADER])


def _email(data: bytes, _ending: str) -> Converted:
    """Read an e-mail; a body of HTML alone is converted."""
    message = message_from_bytes(data, policy=_BriefHeaders())
    assert isinstance(message, EmailMessage)
    body = message.get_body(("plain", "html"))
    content = "" if body is None else body.get_content()
    if body is not None and body.get_content_subtype() == "html":
        content = _converter(".html").convert_string(content).markdown
    sent = message["date"].datetime if message["date"] else None
    fields: dict[str, Json] = {
        "from": str(message["from"] or ""),
        "to": str(message["to"] or ""),
        "date": sent.isoformat() if sent else "",
        "attachments": [part.get_filename() or "" for part in message.iter_attachments()],
    }
    subject = str(message["subject"] or "").strip()
    return Converted(_tidy(content), subject or None, {name: v for name, v in fields.items() if v})


def _tidy(text: str) -> str:
    return text.replace("\f", "\n").strip()


@cache
def _converter(ending: str) -> Any:
    for name in ("pdfminer", "bs4"):  # they warn of harmless faults of fonts and characters
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        from markitdown import converters
    except ImportError:
        raise MissingExtra(
            f"Reading {ending} needs the extra 'documents'. Install it with: pip install "
            f"'attend-retrieval[documents]'."
        ) from None
    return getattr(converters, CONVERTERS[ending])()


def _stream_info() -> Any:
    from markitdown import StreamInfo

    return StreamInfo
