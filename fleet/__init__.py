"""What a serving host does with a bundle: verify, choose a target, open, warm, ready, serve.

Lazy, so that `import fleet` and the probes load no numpy: `fleet.open`, `fleet.verify` and their types come with first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Served", "Verified", "open", "verify"]

if TYPE_CHECKING:
    from fleet.host import Served, open
    from fleet.verify import Verified, verify

_HOMES = {"open": "fleet.host", "Served": "fleet.host", "verify": "fleet.verify", "Verified": "fleet.verify"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fleet' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
