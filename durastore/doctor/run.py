"""`doctor`: every stage in its order.

Duty: the list of stages and what each rests on. Must never act on what a stage found: acting is a stage's own, and only
with `is_applied`.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.doctor.bucket import look_at_bucket
from durastore.doctor.disk import look_at_disk
from durastore.doctor.gpus import look_at_gpus
from durastore.doctor.host import look_at_host
from durastore.doctor.inventory import look_at_inventory
from durastore.doctor.packs import look_at_packs
from durastore.doctor.report import DoctorReport
from durastore.doctor.request import DoctorRequest, Examination
from durastore.doctor.resume import look_at_resume
from durastore.doctor.server import look_at_server
from durastore.doctor.stages import Stage, run_stages
from durastore.doctor.staging import look_at_staging

__all__ = ["doctor"]

_STAGES = (
    ("host", (), look_at_host),
    ("disk", (), look_at_disk),
    ("gpus", (), look_at_gpus),
    ("packs", ("disk",), look_at_packs),
    ("bucket", ("disk",), look_at_bucket),
    ("inventory", ("packs", "bucket"), look_at_inventory),
    ("server", (), look_at_server),
    ("staging", (), look_at_staging),
    ("resume", ("disk", "packs", "bucket", "inventory", "server"), look_at_resume),
)


def doctor(request: DoctorRequest, *, clock: Clock = SYSTEM_CLOCK) -> DoctorReport:
    """Look at everything that an extraction stands on. What fails is in the report; nothing is raised for it.

    Without `is_applied` nothing changes but the doctor's own notes. Safe to repeat, and cheaper the second time.
    """
    with ExitStack() as resources:
        seen = Examination(request=request, clock=clock, resources=resources)
        stages = [Stage(name=name, needs=needs, look=partial(look, seen)) for name, needs, look in _STAGES]
        return DoctorReport(
            root=str(request.local.absolute()),
            bucket=request.bucket.render(),
            stages=run_stages(stages),
            is_applied=request.is_applied,
        )
