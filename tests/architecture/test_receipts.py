"""The right to drop a local file has one issuer and one spender."""

from __future__ import annotations

from tests.architecture.receipt_uses import COPY_ISSUER, ISSUER, STAGING_ISSUER, find_mint_calls, find_receipt_misuses
from tests.architecture.source_tree import REPO


def test_only_the_verifier_mints() -> None:
    assert {use.file for use in find_mint_calls(REPO)} == {ISSUER}
    assert {use.file for use in find_mint_calls(REPO, "mint_copy")} == {COPY_ISSUER}
    assert {use.file for use in find_mint_calls(REPO, "mint_staging")} == {STAGING_ISSUER}


def test_nobody_else_touches_a_receipt() -> None:
    assert find_receipt_misuses(REPO) == []
