"""Bytes for ids that are fetched many at a time are given out once: to one thread, of one process."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from todoku.engine.random_bytes import random_16

FORKS = """
import os
from todoku.engine.random_bytes import random_16

random_16()  # from now on 255 others wait to be used
reading, writing = os.pipe()
if os.fork() == 0:
    os.write(writing, b"".join(random_16() for _ in range(255)))
    os._exit(0)
os.wait()
childs = os.read(reading, 65536)
assert len(childs) == 255 * 16
mine = {random_16() for _ in range(255)}
print(len(mine & {childs[place : place + 16] for place in range(0, len(childs), 16)}))
"""


def test_no_two_calls_get_the_same_bytes_in_any_thread() -> None:
    with ThreadPoolExecutor(8) as threads:
        given = list(threads.map(lambda _: random_16(), range(10_000)))
    assert {len(one) for one in given} == {16}
    assert len(set(given)) == len(given)


def test_a_forked_process_repeats_none_of_its_parents_bytes() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
