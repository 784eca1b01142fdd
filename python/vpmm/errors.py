# SPDX-License-Identifier: Apache-2.0
# vpmm: the exceptions of the package.

from __future__ import annotations

__all__ = ["Error", "MissingPackageError", "OutOfMemoryError"]


class Error(RuntimeError):
    """The library refused a call or cannot carry it out; the message names the pointer or the setting.

    ``code`` is the status's name in ``vpmm.h``, for example ``"VPMM_ERROR_INVALID_POINTER"``.
    """

    code: str

    def __init__(self, message: str, code: str = "VPMM_ERROR_INVALID_ARGUMENT") -> None:
        super().__init__(message)
        self.code = code


class OutOfMemoryError(Error, MemoryError):
    """Device memory ran out, or memory of the process (``VPMM_ERROR_HOST_OUT_OF_MEMORY``).

    For device memory the message is a report of several lines; the first line is complete in itself. The report lists
    the request, live memory and its owners, free memory and why it did not help, and remedies. An exception in an
    out-of-memory callback is its ``__cause__``.
    """

    def __init__(self, message: str, code: str = "VPMM_ERROR_OUT_OF_MEMORY") -> None:
        super().__init__(message, code)


class MissingPackageError(Error, ImportError):
    """The call needs a package that is not installed; the message says how to install it."""

    def __init__(self, what: str, package: str, missing: ImportError) -> None:
        super().__init__(
            f"{what} needs {package}, and {missing.name} is not installed here: pip install {package}",
            "VPMM_ERROR_UNSUPPORTED",
        )
        self.name = missing.name
