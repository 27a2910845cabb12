"""Hardness-aware debiased contrastive collaborative filtering: train, compare and serve recommenders from clicks.

The names below are imported when they are first used, so that `import hdccf` costs nothing.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

__version__ = version("hdccf")

if TYPE_CHECKING:
    from hdccf.data.interactions import Interactions as Interactions
    from hdccf.errors import HdccfError as HdccfError

_ROOM_OF = {
    "HdccfError": "hdccf.errors",
    "Interactions": "hdccf.data.interactions",
}

__all__ = ["HdccfError", "Interactions", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'hdccf' has no attribute {name!r}")
    return getattr(import_module(_ROOM_OF[name]), name)
