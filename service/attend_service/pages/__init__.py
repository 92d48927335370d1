"""What a person sees: a page for each thing to look at, over the same API that programs use.

Templates are in `templates/pages`, one for each view; scripts and styles in `static`, modules that
the browser loads as they are. Searching works without scripts; the rest says that it needs them.
"""

from attend_service.pages.views import VIEWS, first_collection, page, search_page

__all__ = ["VIEWS", "first_collection", "page", "search_page"]
