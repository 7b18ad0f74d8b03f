"""Finds who touches the right to drop a local file: minting, importing, making by hand."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.architecture.source_tree import SourceFile, Use, load_sources

HOME = "durastore/verify/receipt.py"
ISSUER = "durastore/verify/verifier.py"
COPY_ISSUER = "durastore/verify/copied.py"
STAGING_ISSUER = "durastore/verify/staged.py"
_ISSUERS = {"mint": ISSUER, "mint_copy": COPY_ISSUER, "mint_staging": STAGING_ISSUER}
_RECEIPTS = frozenset({"Receipt", "CopyReceipt", "StagingReceipt"})
MODULE = "durastore.verify.receipt"
MAY_IMPORT = ("durastore/verify/", "durastore/reclaim/")


def find_receipt_misuses(root: Path) -> list[Use]:
    """`mint` outside the verifier, the receipt module outside verify and reclaim, a receipt made by hand."""
    return sorted(use for source in load_sources(root) if source.name != HOME for use in _misuses_in(source))


@cache
def _misuses_in(source: SourceFile) -> tuple[Use, ...]:
    return tuple(source.use(function, what) for node, function in source.walk() for what in _misuses(source, node))


def find_mint_calls(root: Path, name: str = "mint") -> list[Use]:
    """Every call of `mint`, or of another of them: its issuer's own, and none besides."""
    return sorted(
        source.use(function, f"{name}(...)")
        for source in load_sources(root)
        for node, function in source.walk()
        if isinstance(node, ast.Call) and _last(source, node.func) == name and not _is_writer_id(source, node.func)
    )


def _misuses(source: SourceFile, node: ast.AST) -> list[str]:
    found = []
    if isinstance(node, ast.Name | ast.Attribute):
        name = _last(source, node)
        if name in _ISSUERS and source.name != _ISSUERS[name] and not _is_writer_id(source, node):
            found.append(name)
        if name == "_SEAL":
            found.append("_SEAL")
    if isinstance(node, ast.Call) and _last(source, node.func) in _RECEIPTS:
        found.append(f"{_last(source, node.func)}(...)")
    if not source.name.startswith(MAY_IMPORT) and _names_module(node):
        found.append(f"import of {MODULE}")
    return found


def _is_writer_id(source: SourceFile, node: ast.AST) -> bool:
    """Writer ids are minted too; they free nothing."""
    return source.dotted(node) == "durastore.model.WriterId.mint"


def _last(source: SourceFile, node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return (source.dotted(node) or "").rpartition(".")[2]


def _names_module(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name == MODULE for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        names = {f"{node.module}.{alias.name}" for alias in node.names}
        return node.module == MODULE or MODULE in names
    return isinstance(node, ast.Constant) and node.value == MODULE  # import_module("...")
