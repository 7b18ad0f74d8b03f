"""The memory of a loader's worker: lent again when nobody can see it, and not before."""

from __future__ import annotations

import dataclasses
import errno
import gc
import logging
import mmap
import os
import random
import secrets
from typing import Any

import pytest

from durastore.dataset import handover
from durastore.dataset.arena import FREE, SENT, TAKEN, Arena, Cells, SentPiece
from durastore.errors import DurastoreError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
MB = 1 << 20


class _Receiver:
    """The other process's side, without its own reference counts."""

    def __init__(self, arena: Arena) -> None:
        self.shared = mmap.mmap(arena.fd, arena.size_bytes)
        self.cells = Cells(self.shared)

    def take(self, piece: SentPiece) -> None:
        assert self.cells.state[piece.cell] == SENT
        self.cells.state[piece.cell] = TAKEN

    def let_go(self, piece: SentPiece) -> None:
        self.cells.state[piece.cell] = FREE

    def bytes_of(self, piece: SentPiece) -> bytes:
        return self.shared[piece.offset : piece.offset + piece.size_bytes]


def _slab(arena: Arena, size: int, fill: int = 1) -> Any:
    slab = arena.slab(size)
    assert slab is not None
    assert len(slab) == size
    return slab.fill_(fill)


def _send(arena: Arena, slab: Any) -> SentPiece:
    piece = arena.send(slab.data_ptr())
    assert piece is not None
    assert piece.size_bytes == len(slab)
    return piece


def test_pieces_that_are_held_do_not_touch_and_are_lent_again_afterwards() -> None:
    arena = Arena(8 * MB)
    first, second = _slab(arena, 3 * MB, 1), _slab(arena, 3 * MB, 2)
    assert arena.slab(3 * MB) is None, "there is no room for a third"
    part = first[:10].view(torch.int16)
    address = first.data_ptr()
    del first
    assert arena.slab(3 * MB) is None, "a tensor of it is left"
    del part
    third = _slab(arena, 3 * MB, 3)
    assert third.data_ptr() == address
    assert bool((second == 2).all())


def test_a_sent_piece_is_lent_again_when_both_sides_let_go() -> None:
    arena = Arena(4 * MB)
    receiver = _Receiver(arena)
    for is_receiver_first in (True, False):
        slab = _slab(arena, 3 * MB, 7)
        piece = _send(arena, slab)
        receiver.take(piece)
        assert receiver.bytes_of(piece) == bytes([7]) * (3 * MB)
        if is_receiver_first:
            receiver.let_go(piece)
        else:
            del slab
        assert arena.slab(3 * MB) is None, "one side still sees it"
        if is_receiver_first:
            del slab
        else:
            receiver.let_go(piece)
        again = _slab(arena, 3 * MB)
        del again


def test_what_numpy_was_given_holds_a_piece_whose_tensor_torch_moves() -> None:
    """`share_memory_`, or a tensor sent on by a queue: torch moves its bytes, and an array looks at the old ones."""
    arena = Arena(4 * MB)
    slab = _slab(arena, 3 * MB, 5)
    array = slab[:8].numpy()
    slab.share_memory_()
    del slab
    assert arena.slab(3 * MB) is None, "the array of it is left"
    assert bytes(array) == bytes([5]) * 8
    del array
    sent = _slab(arena, 3 * MB, 6)
    message = _message(arena, _send(arena, sent))
    del sent
    received = _received(message)
    array = received[:8].numpy()
    received.share_memory_()
    del received
    assert arena.slab(3 * MB) is None, "the receiver's array is left"
    assert bytes(array) == bytes([6]) * 8
    del array
    _slab(arena, 3 * MB)
    handover._MAPPED.pop(message.owner.name)


def test_a_piece_that_was_sent_and_never_received_is_kept() -> None:
    arena = Arena(4 * MB)
    _send(arena, _slab(arena, 3 * MB))
    gc.collect()
    assert arena.slab(3 * MB) is None


def test_a_piece_is_sent_once() -> None:
    arena = Arena(4 * MB)
    slab = _slab(arena, MB)
    assert arena.send(slab.data_ptr()) is not None
    assert arena.send(slab.data_ptr()) is None, "a second receiver would not be waited for"
    assert arena.send(torch.empty(8, dtype=torch.uint8).data_ptr()) is None
    assert arena.send(slab.data_ptr() + 4096) is None


def test_generations_tell_the_messages_of_one_cell_apart() -> None:
    arena = Arena(4 * MB)
    receiver = _Receiver(arena)
    seen = []
    for _ in range(3):
        piece = _send(arena, _slab(arena, MB))
        receiver.take(piece)
        receiver.let_go(piece)
        seen.append((piece.cell, piece.generation))
    assert len({cell for cell, _ in seen}) == 1
    assert len(set(seen)) == 3


def test_there_are_only_so_many_pieces() -> None:
    arena = Arena(64 * MB)
    held = [slab for _ in range(1100) if (slab := arena.slab(1)) is not None]
    assert len(held) == 1024
    held.pop()
    assert arena.slab(1) is not None


def test_what_a_forked_child_may_see_is_not_lent_again() -> None:
    arena = Arena(4 * MB)
    slab = _slab(arena, 3 * MB, 5)
    reader, writer = os.pipe()
    go, ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(go, 1)
        is_whole = bool((slab == 5).all())
        del slab
        os.write(writer, b"1" if is_whole else b"0")
        os._exit(0)
    del slab
    gc.collect()
    other = arena.slab(3 * MB)
    if other is not None:
        other.fill_(9)
    os.write(ready, b"x")
    assert os.read(reader, 1) == b"1"
    os.waitpid(child, 0)
    assert other is None
    for fd in (reader, writer, go, ready):
        os.close(fd)


def test_a_forked_child_takes_nothing_of_its_parents() -> None:
    arena = Arena(4 * MB)
    slab = _slab(arena, MB)
    child = os.fork()
    if child == 0:
        is_refused = arena.slab(MB) is None and arena.send(slab.data_ptr()) is None
        del slab
        gc.collect()
        os._exit(0 if is_refused else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert arena.send(slab.data_ptr()) is not None, "the child's copy going is not the parent's going"


def test_no_memory_is_no_piece_and_not_a_signal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    arena = Arena(64 * MB)
    first = _slab(arena, MB)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    caplog.set_level(logging.WARNING, logger="durastore")
    assert arena.slab(32 * MB) is None
    assert arena.slab(33 * MB) is None
    assert caplog.text.count("No space left on device") == 1, "it may be so for each of many batches"
    address = first.data_ptr()
    del first
    assert _slab(arena, MB).data_ptr() == address, "what it has is still lent"


def test_memory_is_taken_as_needed_and_given_back_at_the_end() -> None:
    arena = Arena(256 * MB)
    assert os.fstat(arena.fd).st_blocks * 512 < MB
    slab, kept = _slab(arena, 16 * MB), _slab(arena, MB, 3)
    piece = _send(arena, kept)
    del slab
    for _ in range(50):
        _slab(arena, 16 * MB)
    assert os.fstat(arena.fd).st_blocks * 512 < 24 * MB
    arena.retire()
    assert os.fstat(arena.fd).st_blocks * 512 < 6 * MB
    assert _Receiver(arena).bytes_of(piece) == bytes([3]) * MB


def test_nothing_is_lent_when_the_worker_ends() -> None:
    arena = Arena(4 * MB)
    arena.retire()
    assert arena.slab(MB) is None, "its memory is the system's again: to write to it may be a signal"


class _Handle:
    """A descriptor on its way."""

    def __init__(self, arena: Arena) -> None:
        self._fd = os.dup(arena.fd)

    def detach(self) -> int:
        return self._fd


def _message(arena: Arena, piece: SentPiece) -> handover._Message:
    owner = handover._Owner(name=secrets.token_hex(8), pid=os.getpid(), size_bytes=arena.size_bytes)
    return handover._Message(owner, _Handle(arena), piece)


def _received(message: handover._Message) -> Any:
    return torch.empty(0, dtype=torch.uint8).set_(handover._take(message))


def test_a_receiver_takes_a_piece_once_and_gives_it_back() -> None:
    arena = Arena(4 * MB)
    piece = _send(arena, _slab(arena, 3 * MB, 6))
    first = _message(arena, piece)
    owner = first.owner
    was_known = arena.is_known
    received = _received(first)
    assert (was_known, arena.is_known) == (False, True)
    assert len(received) == 3 * MB
    with pytest.raises(DurastoreError, match="twice"):
        handover._take(handover._Message(owner, None, piece))
    assert bool((received == 6).all())
    assert arena.slab(MB * 2) is None
    del received
    second = _send(arena, _slab(arena, 3 * MB, 8))
    assert second.cell == piece.cell
    with pytest.raises(DurastoreError, match="twice"):
        handover._take(handover._Message(owner, None, piece))
    received = _received(handover._Message(owner, None, second))
    assert bool((received == 8).all())
    stranger = dataclasses.replace(owner, name=secrets.token_hex(8))
    with pytest.raises(DurastoreError, match="two processes"):
        handover._take(handover._Message(stranger, None, second))
    del received
    handover._MAPPED.pop(owner.name)


def test_what_is_let_go_in_the_moment_of_a_fork_may_be_the_childs() -> None:
    arena = Arena(8 * MB)
    first = _message(arena, _send(arena, _slab(arena, 3 * MB, 1)))
    held = _received(first)
    handover._before_fork()
    del held
    second = _send(arena, _slab(arena, 3 * MB, 2))
    held = _received(handover._Message(first.owner, None, second))
    del held  # came and went: the child may have been made between
    assert arena.slab(3 * MB) is None
    handover._after_fork()
    handover._give_back_left()
    assert _slab(arena, 7 * MB) is not None, "there was no child in the end"
    handover._MAPPED.pop(first.owner.name)


def test_a_receiver_that_cannot_map_the_memory_copies(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    arena = Arena(4 * MB)
    descriptors = len(os.listdir("/proc/self/fd"))
    held = []
    with monkeypatch.context() as limited:
        limited.setattr(mmap, "mmap", refused)
        first = _message(arena, _send(arena, _slab(arena, 3 * MB, 1)))
        piece = first.piece
        for fill in (2, 3):
            held.append(_received(handover._Message(first.owner, _Handle(arena), piece)))
            assert not arena.is_known, "so the descriptor comes again"
            with pytest.raises(DurastoreError, match="twice"):
                handover._take(handover._Message(first.owner, _Handle(arena), piece))
            piece = _send(arena, _slab(arena, 3 * MB, fill))
    assert caplog.text.count("Cannot allocate memory") == 1
    held.append(_received(handover._Message(first.owner, _Handle(arena), piece)))
    assert arena.is_known
    assert [set(bytes(one.numpy())) for one in held] == [{1}, {2}, {3}]
    held.clear()
    handover._MAPPED.pop(first.owner.name)
    os.close(first.handle.detach())
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize("seed", range(6))
def test_nobody_sees_other_bytes_than_were_lent(seed: int) -> None:
    """Random lending, sending, receiving and letting go: what anybody holds stays as it was filled."""
    chance = random.Random(seed)
    arena = Arena(2 * MB)
    receiver = _Receiver(arena)
    lent: list[tuple[Any, int]] = []
    under_way: list[tuple[SentPiece, int]] = []
    taken: list[tuple[SentPiece, int]] = []
    refused = 0
    for number in range(500):
        step = chance.random()
        if step < 0.4:
            slab = arena.slab(chance.randrange(1, 200_000))
            refused += slab is None
            if slab is not None:
                lent.append((slab.fill_(number % 251), number % 251))
        elif step < 0.6 and lent:
            slab, fill = chance.choice(lent)
            piece = arena.send(slab.data_ptr())
            if piece is not None:
                under_way.append((piece, fill))
        elif step < 0.75 and lent:
            lent.pop(chance.randrange(len(lent)))
        elif step < 0.9 and under_way:
            piece, fill = under_way.pop(chance.randrange(len(under_way)))
            receiver.take(piece)
            taken.append((piece, fill))
        elif taken:
            receiver.let_go(taken.pop(chance.randrange(len(taken)))[0])
        slab = None  # or it would be held
        if number % 25 == 0:
            assert all(bool((held == fill).all()) for held, fill in lent)
            assert all(set(receiver.bytes_of(piece)) == {fill} for piece, fill in taken + under_way)
    assert 0 < refused < 180, "both the full arena and reuse were met"
