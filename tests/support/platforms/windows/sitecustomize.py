"""What Python does not have on Windows is not here either: for a process whose PYTHONPATH begins with this directory.

Modules that look at `sys.platform` to load Windows' own libraries are loaded before it says `win32`.
"""

import asyncio  # noqa: F401
import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import multiprocessing.popen_spawn_posix  # noqa: F401
import os
import random  # noqa: F401
import select
import signal
import socket
import subprocess  # noqa: F401
import sys
import sysconfig
import tempfile  # noqa: F401
import threading  # noqa: F401

sysconfig.get_config_vars()  # is read from a file that is named after the platform

for name in ("aiohttp", "click", "psycopg", "rich.console", "rich.table", "starlette.routing", "uvicorn"):
    try:
        __import__(name)
    except ImportError:
        continue

for module in ("fcntl", "grp", "pwd", "resource", "syslog", "termios", "uvloop"):
    sys.modules[module] = None

NOT_IN_OS = (
    "fchmod", "fchown", "fork", "forkpty", "getegid", "geteuid", "getgid", "getloadavg", "getpgid", "getuid", "killpg",
    "memfd_create", "mkfifo", "mknod", "pread", "pwrite", "register_at_fork", "sched_getaffinity", "setpgid", "setsid",
    "uname", "wait", "WIFSIGNALED",
)  # fmt: skip
for place, gone in (
    (os, NOT_IN_OS),
    (signal, ("SIGALRM", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGSTOP", "SIGCONT", "SIGUSR1", "SIGUSR2", "SIGCHLD")),
    (select, ("epoll", "poll", "POLLIN", "POLLHUP", "POLLERR")),
    (socket, ("SO_REUSEPORT", "CMSG_LEN")),
):
    for name in gone:
        if hasattr(place, name):
            delattr(place, name)
sys.platform = "win32"
