"""The policies in examples/iam grant what durastore asks of S3, nothing less and nothing more: counted by a server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from durastore.testing.strict_s3 import SeenRequest, StrictS3
from tests.architecture.source_tree import REPO
from tests.faults.iam_recording import PREFIX, Lab, actions_of

FOLDER = REPO / "examples/iam"
POLICIES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.json")}
BUCKET_ARN, OBJECT_ARN = "arn:aws:s3:::BUCKET", "arn:aws:s3:::BUCKET/PREFIX/*"


def granted(policy: dict[str, Any]) -> set[tuple[str, bool]]:
    """(action, is it about the bucket)."""
    found = set()
    for statement in policy["Statement"]:
        assert statement.keys() == {"Sid", "Effect", "Action", "Resource"}
        assert statement["Effect"] == "Allow"
        assert statement["Resource"] in (BUCKET_ARN, OBJECT_ARN)
        actions = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        found |= {(action, statement["Resource"] == BUCKET_ARN) for action in actions}
    return found


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[SeenRequest]]:
    """What each of the three asked, one after another on one bucket."""
    with StrictS3() as server, pytest.MonkeyPatch.context() as monkeypatch:
        lab = Lab(server, tmp_path_factory.mktemp("iam"), monkeypatch)
        with lab.recorded() as written:
            lab.write()
            lab.write_after_a_kill()
        with lab.recorded() as operated:
            lab.operate()
        with lab.recorded() as read:
            lab.read()
    return {"writer": written, "operator": operated, "reader": read}


@pytest.mark.parametrize("who", sorted(POLICIES))
def test_a_policy_grants_what_is_asked_and_nothing_else(who: str, asked: dict[str, list[SeenRequest]]) -> None:
    needed, given = actions_of(asked[who]), granted(POLICIES[who])
    assert needed - given == set(), "would be refused"
    assert given - needed == set(), "is never used"


def test_each_role_has_a_policy_and_each_is_on_the_page(asked: dict[str, list[SeenRequest]]) -> None:
    assert POLICIES.keys() == asked.keys()
    page = (REPO / "docs/operations/iam.md").read_text(encoding="utf-8")
    for name, policy in POLICIES.items():
        assert f"examples/iam/{name}.json" in page
        (row,) = re.findall(rf"^\| {name} \| ([^|]*) \|", page, re.MULTILINE)
        assert {f"s3:{action}" for action in re.findall(r"`(\w+)`", row)} == {action for action, _ in granted(policy)}


def test_everything_happens_below_the_prefix_but_listing(asked: dict[str, list[SeenRequest]]) -> None:
    seen = [request for requests in asked.values() for request in requests]
    assert {request.key for request in seen if request.key and not request.key.startswith(f"{PREFIX}/")} == set()
    assert "" in {request.prefix for request in seen if request.op == "list"}, "why ListBucket has no prefix condition"


def test_nobody_asks_to_take_anything_away(asked: dict[str, list[SeenRequest]]) -> None:
    assert {request.op for requests in asked.values() for request in requests}.isdisjoint({"delete", "unsupported"})
    texts = [path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")]
    assert not any("Delete" in text or "s3:*" in text or "s3:Put*" in text for text in texts)


def test_a_request_without_an_action_is_noticed() -> None:
    odd = SeenRequest(
        op="delete", bucket="b", key="k", status=204, connection=1, at_s=0.0, has_version=False, prefix=""
    )
    with pytest.raises(KeyError, match="delete"):
        actions_of([odd])


def test_the_policies_are_small_enough_for_every_server() -> None:
    """MinIO takes 2,048 characters."""
    for path in FOLDER.glob("*.json"):
        assert len(Path(path).read_text(encoding="utf-8")) < 1_800
