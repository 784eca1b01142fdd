# SPDX-License-Identifier: Apache-2.0
# vpmm: the exceptions and the warning of the package.

from __future__ import annotations

import re
import warnings

__all__ = ["Error", "InvalidArgumentError", "MissingPackageError", "OutOfMemoryError", "VpmmWarning", "warn"]


class Error(RuntimeError):
    """The library refused a call or cannot carry it out; the message names the pointer or the setting.

    ``code`` is the status's name in ``vpmm.h``, for example ``"VPMM_ERROR_INVALID_POINTER"``.
    """

    code: str

    def __init__(self, message: str, code: str = "VPMM_ERROR_INVALID_ARGUMENT") -> None:
        super().__init__(message)
        self.code = code


class InvalidArgumentError(Error, ValueError):
    """A value that is not allowed, of an argument or of a setting; an address without an allocation; a closed object.

    A value of a wrong type is a TypeError.
    """


class OutOfMemoryError(Error, MemoryError):
    """Device memory ran out, or memory of the process (``VPMM_ERROR_HOST_OUT_OF_MEMORY``).

    For device memory the message is a report of several lines; the first line is complete in itself. The report lists
    the request, live memory and its owners, free memory and why it did not help, and remedies. An exception in an
    out-of-memory callback is its ``__cause__``. The error can be pickled, with its attributes.
    """

    requested: int | None = None
    """Bytes that the call asked for, those of all requests of ``allocate_many``; None: it asked for no number."""
    missing: int | None = None
    """Bytes to free, or to add to the capacity, for the request; None: the report has another reason."""
    capacity: int | None = None
    """The limit of the pool in bytes; None: no limit but the memory of the device."""
    report: str = ""
    """The whole report, which is the message of the error."""

    def __init__(
        self,
        message: str,
        code: str = "VPMM_ERROR_OUT_OF_MEMORY",
        requested: int | None = None,
        capacity: int | None = None,
    ) -> None:
        super().__init__(message, code)
        self.requested = requested
        self.missing = _missing_in(message)
        self.capacity = capacity
        self.report = message


def _missing_in(report: str) -> int | None:
    """The report states missing memory exactly, and the C ABI has it nowhere else."""
    found = re.search(r"^out of device memory: .*; (\d+) (bytes|KiB|MiB|GiB) are missing;", report)
    return int(found[1]) << 10 * ("bytes", "KiB", "MiB", "GiB").index(found[2]) if found else None


class MissingPackageError(Error, ImportError):
    """The call needs a package that is not installed; the message says how to install it."""

    def __init__(self, what: str, package: str, missing: ImportError) -> None:
        super().__init__(
            f"{what} needs {package}, and {missing.name} is not installed here: pip install {package}",
            "VPMM_ERROR_UNSUPPORTED",
        )
        self.name = missing.name

    def __reduce__(self) -> tuple[object, ...]:
        return _missing_package_again, (self.args, super().__reduce__()[2])


def _missing_package_again(args: tuple[object, ...], attributes: dict[str, object]) -> MissingPackageError:
    """The error as it was pickled; its constructor takes other arguments."""
    made = MissingPackageError.__new__(MissingPackageError)
    made.args = args
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


class VpmmWarning(RuntimeWarning):
    """The category of all warnings of the package. Their texts begin with "vpmm: "."""


def warn(message: str, stacklevel: int) -> None:
    """Warns with "vpmm: " and `message` at the line of a caller; `stacklevel` 1 is the line that calls warn()."""
    warnings.warn(f"vpmm: {message}", VpmmWarning, stacklevel=stacklevel + 1)
