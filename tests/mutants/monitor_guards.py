"""Mutants of what keeps the monitor out of the way of a run, and away from those who may not see it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MONITOR"]

_HARMLESS = "telling and watching can neither fail nor hold up a put, and tell the truth or nothing"
_PRIVATE = "another address than loopback needs the token, and nobody changes anything"
_SERVER = "tests/integration/test_monitor_server.py"
_FILE = "tests/unit/test_status_file.py"


def _guard(name: str, *, before: str, after: str, test: str) -> Mutant:
    file = "durastore/monitor/guard.py"
    return Mutant(name=name, clause=_PRIVATE, file=file, before=before, after=after, tests=(f"{_SERVER}::{test}",))


MONITOR = (
    _guard(
        "monitor-any-token",
        before='return hmac.compare_digest(told.encode(), (self._token or "").encode()) and bool(self._token)',
        after="return bool(told)",
        test="test_another_address_than_loopback_needs_the_token",
    ),
    _guard(
        "monitor-any-host-name",
        before="if self._token is None and not is_loopback(_name_of(host)):",
        after="if False:",
        test="test_the_page_its_numbers_and_nothing_that_changes_anything",
    ),
    _guard(
        "monitor-any-origin",
        before='if "origin" in headers and urlsplit(headers["origin"]).netloc != host:',
        after="if False:",
        test="test_the_page_its_numbers_and_nothing_that_changes_anything",
    ),
    _guard(
        "monitor-any-method",
        before='if method not in ("GET", "HEAD") and not path.startswith(_SOCKET_PATH):',
        after="if False:",
        test="test_the_page_its_numbers_and_nothing_that_changes_anything",
    ),
    Mutant(
        name="monitor-token-not-asked",
        clause=_PRIVATE,
        file="durastore/monitor/serving.py",
        before="token = None if is_loopback(host) else make_token()",
        after="token = None",
        tests=(f"{_SERVER}::test_another_address_than_loopback_needs_the_token",),
    ),
    Mutant(
        name="status-torn-slot-believed",
        clause=_HARMLESS,
        file="durastore/formats/status.py",
        before="and _digest(number, text) == digest else None",
        after="else None",
        tests=(f"{_FILE}::test_a_torn_slot_leaves_the_one_before",),
    ),
    Mutant(
        name="status-full-disk-raises",
        clause=_HARMLESS,
        file="durastore/fsio/status_file.py",
        before="        except OSError:\n            return False\n",
        after="        except InterruptedError:\n            return False\n",
        tests=(f"{_FILE}::test_no_error_of_the_disk_comes_out",),
    ),
    Mutant(
        name="status-follows-links",
        clause=_HARMLESS,
        file="durastore/fsio/status_file.py",
        before="os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC",
        after="os.O_RDWR | os.O_CREAT | os.O_CLOEXEC",
        tests=(f"{_FILE}::test_a_link_or_folder_in_its_place_is_left_alone",),
    ),
    Mutant(
        name="stall-moving-stage-told",
        clause=_HARMLESS,
        file="durastore/observe/stalls.py",
        before="if stage.progress != progress or not stage.is_waited_for or since_ns > now_ns:",
        after="if not stage.is_waited_for or since_ns > now_ns:",
        tests=("tests/unit/test_observe_stalls.py",),
    ),
    Mutant(
        name="rates-count-what-was-there-before",
        clause=_HARMLESS,
        file="durastore/monitor/history.py",
        before="first=Counters() if is_young else counters",
        after="first=Counters()",
        tests=("tests/unit/test_monitor_view.py::test_what_was_there_before_watching_is_no_speed",),
    ),
)
