"""The right to drop one local file: short-lived, single-use, bound to one inode.

`Receipt` says that the bytes were seen in the bucket, `CopyReceipt` that they were read back on another device,
`StagingReceipt` that a server's file is of no more use to anybody. Only `verify.verifier` calls `mint`, only
`verify.copied` `mint_copy` and only `verify.staged` `mint_staging`; only `reclaim` spends. None of them can be pickled,
copied or made by hand.
"""

from __future__ import annotations

import threading
from typing import Any, NoReturn

from durastore.clock import Clock
from durastore.errors import ReceiptRefused
from durastore.fsio.identity import FileIdentity
from durastore.model import Digest, Evidence, ObjectKey, render_json

__all__ = ["CopyReceipt", "Receipt", "StagingReceipt", "mint", "mint_copy", "mint_staging"]

_SEAL = object()


class _Spendable:
    """Good once, until it expires, for one file in one state."""

    __slots__ = ("_clock", "_expires_at", "_is_spent", "_lock", "_what", "identity")

    def __init__(self, seal: object, *, what: str, identity: FileIdentity, expiry: tuple[Clock, float]) -> None:
        if seal is not _SEAL:
            raise TypeError("only the verifier makes receipts")
        self._clock, self._expires_at = expiry
        self._is_spent = False
        self._lock = threading.Lock()
        self._what = what
        self.identity = identity
        """The file this receipt is for, as it was when both sides were compared."""

    def spend(self, identity: FileIdentity) -> None:
        """Use it up for the file of this identity. `ReceiptRefused` if spent, expired, or the file is another."""
        with self._lock:
            if self._is_spent:
                raise ReceiptRefused(f"the receipt for {self._what} was spent before")
            self._is_spent = True  # also a refused attempt uses it up: a second try needs a second look
        if self._clock.monotonic() >= self._expires_at:
            raise ReceiptRefused(f"the receipt for {self._what} expired")
        if identity != self.identity:
            raise ReceiptRefused(f"the local file of {self._what} changed after it was proven")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a receipt cannot be pickled or copied")

    def __copy__(self) -> NoReturn:
        raise TypeError("a receipt cannot be copied")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise TypeError("a receipt cannot be copied")


class Receipt(_Spendable):
    """Proof that the bytes of one local file were just seen in the bucket."""

    __slots__ = ("evidence", "pack_id")

    def __init__(
        self, seal: object, *, pack_id: int, identity: FileIdentity, evidence: Evidence, expiry: tuple[Clock, float]
    ) -> None:
        super().__init__(seal, what=str(evidence.key), identity=identity, expiry=expiry)
        self.pack_id = pack_id
        self.evidence = evidence

    @property
    def key(self) -> ObjectKey:
        return self.evidence.key

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


class CopyReceipt(_Spendable):
    """Proof that the bytes of one local file were read back from a copy on another device (ADR 0009)."""

    __slots__ = ("digest", "target")

    def __init__(
        self, seal: object, *, identity: FileIdentity, target: FileIdentity, digest: Digest, expiry: tuple[Clock, float]
    ) -> None:
        super().__init__(seal, what=f"the copy of inode {identity.inode}", identity=identity, expiry=expiry)
        self.target = target
        self.digest = digest

    def render(self) -> str:
        """What is kept as the intent: canonical JSON, of no use as a receipt."""
        facts = {"identity": self.identity.render(), "target": self.target.render(), "digest": self.digest.hex}
        return render_json(facts)


class StagingReceipt(_Spendable):
    """Proof that one file of a server's staging folder was parsed into a durable sample, or is of a request that nobody
    can use any more (ADR 0014).
    """

    __slots__ = ()

    def __init__(self, seal: object, *, identity: FileIdentity, expiry: tuple[Clock, float]) -> None:
        super().__init__(seal, what=f"the staging file of inode {identity.inode}", identity=identity, expiry=expiry)


def mint(*, pack_id: int, identity: FileIdentity, evidence: Evidence, clock: Clock, ttl_s: float) -> Receipt:
    """Make a receipt. Called by `verify.verifier` alone; a test holds every other caller off."""
    return Receipt(
        _SEAL, pack_id=pack_id, identity=identity, evidence=evidence, expiry=(clock, clock.monotonic() + ttl_s)
    )


def mint_copy(
    *, identity: FileIdentity, target: FileIdentity, digest: Digest, clock: Clock, ttl_s: float
) -> CopyReceipt:
    """Make a receipt for a copy. Called by `verify.copied` alone; a test holds every other caller off."""
    return CopyReceipt(
        _SEAL, identity=identity, target=target, digest=digest, expiry=(clock, clock.monotonic() + ttl_s)
    )


def mint_staging(*, identity: FileIdentity, clock: Clock, ttl_s: float) -> StagingReceipt:
    """Make a receipt for a staging file. Called by `verify.staged` alone; a test holds every other caller off."""
    return StagingReceipt(_SEAL, identity=identity, expiry=(clock, clock.monotonic() + ttl_s))
