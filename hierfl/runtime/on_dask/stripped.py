"""What is taken from Dask's servers, a worker and a scheduler: all of their words but a few, pages, and code that comes from others."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any

LOG = logging.getLogger("hierfl.site")


class Unheard(dict[str, Any]):
    """The handlers of what comes in a stream: there is one for what is here, and all else is left undone."""

    def __missing__(self, word: str) -> Any:
        LOG.warning("a cluster's message %.40r, which is not heard here", word)
        return lambda **_: None


class Stripped:
    """Beside a server of Dask's, before it among the bases."""

    local_directory: str
    handlers: dict[str, Any]
    stream_handlers: dict[str, Any]

    def strip(self, words: Mapping[str, Any], stream: Mapping[str, Any]) -> None:
        """Leave these words alone, those of new connections and those in streams; nor are modules looked for where Dask puts others' files."""
        self.handlers, self.stream_handlers = dict(words), Unheard(stream)
        if self.local_directory in sys.path:
            sys.path.remove(self.local_directory)

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Open no port for pages."""
