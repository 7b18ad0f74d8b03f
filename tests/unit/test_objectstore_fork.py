"""What a forked child may use of what its parent opened."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from durastore.objectstore.per_process import PerProcess

_SCRIPT = """
import os, warnings
warnings.simplefilter("ignore")
from durastore.objectstore import s3_ranged

def seen_by_a_child():
    pid = os.fork()
    if pid == 0:
        os._exit(0 if s3_ranged.is_usable() else 7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

assert s3_ranged.is_usable() and seen_by_a_child() == 0
import obstore
assert s3_ranged.is_usable() and seen_by_a_child() == 7
"""


def test_a_child_keeps_off_a_runtime_its_parent_may_have_started() -> None:
    # case B154
    subprocess.run([sys.executable, "-c", _SCRIPT], check=True, timeout=60)


def test_a_value_is_made_once_a_process_and_anew_after_it_was_taken() -> None:
    made: list[int] = []
    lock = threading.Lock()

    def make() -> int:
        with lock:
            made.append(len(made))
            return made[-1]

    value = PerProcess(make)
    assert value.take() is None
    threads = [threading.Thread(target=value.get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (value.get(), made) == (0, [0])
    assert value.take() == 0
    assert value.get() == 1


def test_another_process_gets_a_value_of_its_own() -> None:
    value = PerProcess(os.getpid)
    mine = value.get()
    # As in a child: its pid is another, and the parent's lock may be held for ever.
    slots = value._slots
    slots[-1] = slots.pop(mine)
    slots[-1].lock.acquire()
    assert value.get() == mine
    assert slots[-1] is not slots[mine]
