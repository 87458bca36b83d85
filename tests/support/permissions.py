"""What root may do beyond others. Linux only, as the crash tests are."""

from __future__ import annotations

import ctypes
import os

_VERSION = 0x20080522
"""Of the structures below: _LINUX_CAPABILITY_VERSION_3."""
_DAC_OVERRIDE = 1 << 1
"""CAP_DAC_OVERRIDE: permissions of files do not count."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Set(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def obey_permissions() -> None:
    """From now on this thread, and every thread it starts, may write only what the permissions of files allow.

    Root stays root otherwise: it still reads everything, so code that is imported later is found wherever it lies.
    Called by anybody else it changes nothing.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(_VERSION, 0), (_Set * 2)()
    _checked(libc.capget(ctypes.byref(header), sets))
    sets[0].effective &= ~_DAC_OVERRIDE
    sets[0].permitted &= ~_DAC_OVERRIDE
    _checked(libc.capset(ctypes.byref(header), sets))


def _checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
