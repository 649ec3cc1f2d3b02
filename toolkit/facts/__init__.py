"""Facts about releases, as data with a source per row. ``load()`` reads them; what no source says is None."""

from toolkit.facts.images import image_versions
from toolkit.facts.load import load
from toolkit.facts.model import Fact, Facts, FlashRow, Release
from toolkit.facts.options import build_options, serve_options
from toolkit.facts.servers import server_does

__all__ = [
    "Fact",
    "Facts",
    "FlashRow",
    "Release",
    "build_options",
    "image_versions",
    "load",
    "serve_options",
    "server_does",
]
