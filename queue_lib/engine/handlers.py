"""What can be a handler, told when it subscribes and not by its first delivery."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

from queue_lib.errors import InvalidOptionsError, shown

__all__ = ["check_handler"]

_LAZY = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)


def check_handler(handler: object) -> None:
    """Check that calling a handler with a delivery handles it.

    Calling a coroutine or generator function runs nothing of it: each delivery would be
    acknowledged unhandled.

    Raises:
        InvalidOptionsError: it is not callable, not with one delivery, or no plain function.
    """
    if not callable(handler):
        raise InvalidOptionsError(f"handler {shown(handler)}: must be callable")
    function: Callable[..., object] = handler
    while isinstance(function, partial):
        function = function.func
    for called in (function, type(function).__call__):
        if any(is_lazy(called) for is_lazy in _LAZY):
            raise InvalidOptionsError(
                f"handler {shown(handler)}: must be a plain function, "
                "neither a coroutine nor a generator function"
            )
    try:
        # Not that of what it wraps, whose further arguments it may supply.
        signature = inspect.signature(handler, follow_wrapped=False)
    except (TypeError, ValueError):  # a builtin may have none
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise InvalidOptionsError(
            f"handler {shown(handler)}: must take one argument, the delivery ({error})"
        ) from None
