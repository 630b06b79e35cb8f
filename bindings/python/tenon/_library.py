"""Finds and loads libtenon-llm and declares its functions. `lib.tn_…` calls one; `check` turns a status into an exception."""
import ctypes
import os
import sys
from typing import Any, Iterator, Optional

from . import _types as t
from ._functions import FUNCTIONS

NAMES = ('libtenon-llm.so', 'libtenon-llm.so.0.2')


class TenonError(RuntimeError):
    """A call failed. The text is Tenon's own message; `status` is the status code, `name` its name ("TN_E_NOT_FOUND")."""

    def __init__(self, status: int, name: str, message: str) -> None:
        super().__init__(message)
        self.status, self.name = status, name

    def __reduce__(self) -> Any:
        return (TenonError, (self.status, self.name, str(self)))


def _candidates() -> Iterator[str]:
    """TENON_LIBRARY (a file or a folder), the build folder of a checkout, the prefix this package is installed in, the system."""
    given = os.environ.get('TENON_LIBRARY')
    if given:
        yield from ([os.path.join(given, name) for name in NAMES] if os.path.isdir(given) else [given])
        return
    here = os.path.dirname(os.path.realpath(__file__))
    checkout, prefix = os.path.join(here, *['..'] * 3), os.path.join(here, *['..'] * 4)  # PREFIX/share/tenon/python/tenon
    folders = [os.path.join(checkout, 'build', 'lib'), os.path.join(prefix, 'lib'), os.path.join(sys.prefix, 'lib')]
    yield from (path for folder in folders for name in NAMES for path in [os.path.join(folder, name)] if os.path.exists(path))
    yield from NAMES


def _load() -> ctypes.CDLL:
    tried = []
    for path in _candidates():
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            tried.append(str(error))
    raise ImportError('libtenon-llm.so cannot be loaded (' + '; '.join(tried) + '): build it with make, install it with make install, '
                      'or set TENON_LIBRARY to its folder')


lib = _load()
for _name, (_result, *_parameters) in FUNCTIONS.items():
    try:
        _function = getattr(lib, _name)
    except AttributeError:  # of another build
        continue
    _function.restype, _function.argtypes = _result, _parameters


def error_of(status: int) -> TenonError:
    name = lib.tn_status_name(status).decode()
    return TenonError(status, name, (lib.tn_error() or b'').decode('utf-8', 'replace') or lib.tn_status_text(status).decode())


def check(status: int) -> None:
    """Raises the failure that the calling thread has just had."""
    if status != t.TN_OK:
        raise error_of(status)


def encoded(text: Optional[str]) -> Optional[bytes]:
    return None if text is None else text.encode('utf-8', 'surrogateescape')


def taken(pointer: Any, length: Optional[int] = None) -> str:
    """The text that a function allocated, which is freed."""
    try:
        raw = ctypes.string_at(pointer) if length is None else ctypes.string_at(pointer, length)
        return raw.decode('utf-8', 'replace')
    finally:
        lib.tn_free(ctypes.cast(pointer, ctypes.c_void_p))


_log_callback: Any = None


def set_log(sink: Any = None, level: int = t.TN_LOG_WARN) -> None:
    """Sends messages of at least this level (0 debug, 1 info, 2 warnings, 3 errors, 4 none) to sink(level, text); None: to stderr."""
    global _log_callback
    callback = t.tn_log_fn(lambda _, at, text: sink(at, text.decode('utf-8', 'replace'))) if sink else t.tn_log_fn(0)
    lib.tn_log_set(callback, None, level)
    _log_callback = callback  # the library calls it from now on
