"""Triton's interpreter in half of its time."""

from __future__ import annotations

from typing import Any

from triton.runtime.interpreter import GridExecutor, InterpretedFunction, _patch_lang


def patch_once_per_launch() -> None:
    """The interpreter patches Triton's language for every call of a device function, of `tl.sum` too. Once for each
    module and launch is enough: patches hold until the kernel returns."""
    launch = GridExecutor.__call__
    patched: set[int] = set()

    def launch_unpatched(self: GridExecutor, *arguments: Any, **options: Any) -> None:
        patched.clear()
        launch(self, *arguments, **options)

    def call(self: InterpretedFunction, *arguments: Any, **options: Any) -> Any:
        module = id(self.fn.__globals__)
        if module not in patched:
            _patch_lang(self.fn)
            patched.add(module)
        return self.rewrite()(*arguments, **options)

    GridExecutor.__call__ = launch_unpatched
    InterpretedFunction.__call__ = call
