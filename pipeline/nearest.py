"""What somebody may have meant by a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """For an error's `expected`: the known name that is most like `name`, or all of them where none is."""
    import difflib  # only on the way to an error: a host's command starts without it

    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"one of {', '.join(names)}"
