"""The right to drop one local file: short-lived, single-use, bound to one inode.

Only `verify.verifier` calls `mint`; only `reclaim` spends. A receipt cannot be pickled, copied or made by hand.
"""

from __future__ import annotations

import threading
from typing import Any, NoReturn

from durastore.clock import Clock
from durastore.errors import ReceiptRefused
from durastore.fsio.identity import FileIdentity
from durastore.model import Evidence, ObjectKey, render_json

__all__ = ["Receipt", "mint"]

_SEAL = object()


class Receipt:
    """Proof that the bytes of one local file were just seen in the bucket. Good once, until it expires."""

    __slots__ = ("_clock", "_expires_at", "_is_spent", "_lock", "evidence", "identity", "pack_id")

    def __init__(
        self, seal: object, *, pack_id: int, identity: FileIdentity, evidence: Evidence, expiry: tuple[Clock, float]
    ) -> None:
        if seal is not _SEAL:
            raise TypeError("only the verifier makes receipts")
        self._clock, self._expires_at = expiry
        self._is_spent = False
        self._lock = threading.Lock()
        self.pack_id = pack_id
        self.identity = identity
        """The file this receipt is for, as it was when both sides were compared."""
        self.evidence = evidence

    @property
    def key(self) -> ObjectKey:
        return self.evidence.key

    def spend(self, identity: FileIdentity) -> None:
        """Use it up for the file of this identity. `ReceiptRefused` if spent, expired, or the file is another."""
        with self._lock:
            if self._is_spent:
                raise ReceiptRefused(f"the receipt for {self.key} was spent before")
            self._is_spent = True  # also a refused attempt uses it up: a second try needs a second look
        if self._clock.monotonic() >= self._expires_at:
            raise ReceiptRefused(f"the receipt for {self.key} expired")
        if identity != self.identity:
            raise ReceiptRefused(f"the local file of {self.key} changed after it was proven")

    def render(self) -> str:
        """What the journal keeps as the intent: canonical JSON, of no use as a receipt."""
        evidence = self.evidence
        facts = {
            "pack_id": self.pack_id,
            "identity": self.identity.render(),
            "key": evidence.key.text,
            "level": evidence.level.name,
            "etag": evidence.etag,
            "version_id": evidence.version_id,
            "digest": evidence.digest.hex if evidence.digest else None,
            "taken": evidence.taken,
            "probe": evidence.probe,
        }
        return render_json(facts)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a receipt cannot be pickled or copied")

    def __copy__(self) -> NoReturn:
        raise TypeError("a receipt cannot be copied")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise TypeError("a receipt cannot be copied")


def mint(*, pack_id: int, identity: FileIdentity, evidence: Evidence, clock: Clock, ttl_s: float) -> Receipt:
    """Make a receipt. Called by `verify.verifier` alone; a test holds every other caller off."""
    return Receipt(
        _SEAL, pack_id=pack_id, identity=identity, evidence=evidence, expiry=(clock, clock.monotonic() + ttl_s)
    )
