# vpmm: the exceptions of the package.

from __future__ import annotations

__all__ = ["Error", "MissingPackageError", "OutOfMemoryError"]


class Error(RuntimeError):
    """What the library refuses or cannot do; the message is a sentence that names the pointer or the setting.

    ``code`` is the status's name in ``vpmm.h``, for instance ``"VPMM_ERROR_INVALID_POINTER"``.
    """

    code: str

    def __init__(self, message: str, code: str = "VPMM_ERROR_INVALID_ARGUMENT") -> None:
        super().__init__(message)
        self.code = code


class OutOfMemoryError(Error, MemoryError):
    """Memory of the device, or of the process (``VPMM_ERROR_HOST_OUT_OF_MEMORY``), has run out.

    For the device the message is a report of several lines, of which the first makes sense alone: what was asked for,
    what lives and who holds it, what is free and why that did not help, what to try. What an out-of-memory callback
    raised is its ``__cause__``.
    """

    def __init__(self, message: str, code: str = "VPMM_ERROR_OUT_OF_MEMORY") -> None:
        super().__init__(message, code)


class MissingPackageError(Error, ImportError):
    """What needs a package that is not installed here; the message says how to install it."""

    def __init__(self, what: str, package: str, missing: ImportError) -> None:
        super().__init__(
            f"{what} needs {package}, and {missing.name} is not installed here: pip install {package}",
            "VPMM_ERROR_UNSUPPORTED",
        )
        self.name = missing.name
