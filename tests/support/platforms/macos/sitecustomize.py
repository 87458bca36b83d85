"""What Python has on Linux and not on macOS is not here either: for a process whose PYTHONPATH begins with this."""

import os
import select
import socket
import sys
import sysconfig

sysconfig.get_config_vars()  # is read from a file that is named after the platform


def _refused(*_: object) -> None:
    """Only root may make a node there."""
    raise PermissionError(1, "Operation not permitted")


os.mknod = _refused
for place, gone in (
    (os, ("memfd_create", "sched_getaffinity", "posix_fadvise", "eventfd", "pidfd_open", "splice", "copy_file_range")),
    (select, ("epoll",)),
    (socket, ("TCP_KEEPIDLE", "TCP_USER_TIMEOUT", "SO_PASSCRED")),
):
    for name in gone:
        if hasattr(place, name):
            delattr(place, name)
sys.modules["_posixshmem"] = sys.modules["spwd"] = None
sys.platform = "darwin"
