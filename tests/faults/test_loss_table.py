"""Issue by issue, lie by lie: nothing is lost and nothing is said to be in the bucket that is not. See `loss_table`.

The sample of `make test` is small packs under six lies; `make loss-table` plays every scene and prints the table.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from durastore.testing.strict_s3 import StrictS3
from tests.faults.loss_lies import SAMPLED, SCENES, Scene
from tests.faults.loss_table import FULL, QUICK, Lab, Outcome, Table, environment, render_table


def run(scenes: tuple[Scene, ...], server: StrictS3, *, folder: Path, table: Table) -> list[Outcome]:
    with environment(server, table):
        lab = Lab(server=server, folder=folder, table=table)
        return [lab.play(scene) for scene in scenes]


@pytest.mark.parametrize("scene", SAMPLED, ids=str)
def test_a_lie_loses_nothing(scene: Scene, strict_s3: StrictS3, tmp_path: Path) -> None:
    (outcome,) = run((scene,), strict_s3, folder=tmp_path, table=QUICK)
    assert outcome.put == len(QUICK.sizes)
    assert (outcome.lost, outcome.false_at_end, outcome.unreadable) == ([], [], {})
    assert scene.is_taken_away_later or outcome.falsely_reported == []


def test_an_honest_server_frees_every_sample(strict_s3: StrictS3, tmp_path: Path) -> None:
    # or the table would prove nothing: a store that keeps everything loses nothing either
    (outcome,) = run(SCENES[:1], strict_s3, folder=tmp_path, table=QUICK)
    assert (outcome.end, outcome.lost, outcome.falsely_reported, outcome.false_at_end) == ("", [], [], [])
    assert outcome.freed == outcome.reported == outcome.stored == outcome.put == len(QUICK.sizes)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_the_loss_table(strict_s3: StrictS3, tmp_path: Path) -> None:
    outcomes = run(SCENES, strict_s3, folder=tmp_path, table=FULL)
    sys.stdout.write(f"\n{render_table(outcomes)}\n")
    assert {str(o.scene): o.lost for o in outcomes if o.lost} == {}
    assert {str(o.scene): o.false_at_end for o in outcomes if o.false_at_end} == {}
    early = [o for o in outcomes if not o.scene.is_taken_away_later]
    assert {str(o.scene): o.falsely_reported for o in early if o.falsely_reported} == {}
