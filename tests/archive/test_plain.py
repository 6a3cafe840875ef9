import json
from dataclasses import asdict

import pytest
from records import GPU, checked, confirmed

from archive import plain
from archive.records import Duel, Evaluation, Outcome


def test_an_evaluation_with_all_its_fields_survives_json() -> None:
    evaluation = checked(confirmed("k", w=3.5, v=7.25))
    read = plain.record(Evaluation, json.loads(json.dumps(asdict(evaluation))))
    assert read == evaluation
    assert read.id == evaluation.id
    assert isinstance(read.outcome, Outcome)
    assert read.device.tflops == GPU.tflops


def test_missing_fields_have_their_defaults() -> None:
    fields = {"kernel_id": "k", "op": "softmax", "device": asdict(GPU), "outcome": "wrong", "log": "off"}
    assert plain.record(Evaluation, fields) == Evaluation("k", "softmax", GPU, Outcome.WRONG, "off")


def test_a_field_that_the_record_does_not_have_is_an_error() -> None:
    with pytest.raises(TypeError, match="colour"):
        plain.record(Duel, {"colour": "red"})
