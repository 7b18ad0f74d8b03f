"""What Ray says of an actor, as an answer: gone, perhaps gone, or of no use."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from durastore.extract.cluster import Lost, Refused
from durastore.integrations.ray_cluster import _no_answer

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("ray") is None, reason="there is no Ray for this Python"),
]


def test_an_actor_that_ray_ended_or_lost_is_gone() -> None:
    from ray import exceptions

    errors = [
        exceptions.ActorDiedError(),
        exceptions.WorkerCrashedError(),
        exceptions.NodeDiedError("the node is dead"),
        exceptions.OutOfMemoryError("1 worker(s) were killed due to the node running low on memory"),
    ]
    answers = [_no_answer(error) for error in errors]
    assert all(isinstance(answer, Lost) and answer.is_gone for answer in answers), answers
    assert "running low on memory" in str(answers[-1])


def test_an_actor_whose_answer_is_lost_is_asked_again() -> None:
    from ray import exceptions

    errors = [
        exceptions.ActorUnavailableError("no connection", None),
        exceptions.ObjectLostError("00", b"", ""),
        exceptions.ObjectFetchTimedOutError("00", b"", ""),
    ]
    answers = [_no_answer(error) for error in errors]
    assert all(isinstance(answer, Lost) and not answer.is_gone for answer in answers), answers


def test_what_would_be_no_better_elsewhere_is_refused() -> None:
    from ray import exceptions

    errors = [exceptions.RuntimeEnvSetupError("no pip"), exceptions.LocalRayletDiedError()]
    assert all(isinstance(_no_answer(error), Refused) for error in errors)
