# SPDX-License-Identifier: Apache-2.0
"""dlsim.LossScaler takes settings as Python writes them, is copied, and refuses in one line."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import dlsim


def _pickled(scaler: Any) -> Any:
    return pickle.loads(pickle.dumps(scaler))


_COPIES: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, _pickled]


def _state(scaler: dlsim.LossScaler) -> str:
    """Returns the state as text, in which NaN is equal to NaN and 2 to 2.0."""
    fields = {"scale": scaler.scale, **scaler.checkpoint()}
    return repr({k: v if isinstance(v, str) else float(v) for k, v in fields.items()})


def test_settings_may_be_numbers_and_truth_values() -> None:
    settings = {"init_scale": 2.0**10, "growth_interval": 3, "enabled": True}
    texts = {"init_scale": "2^10", "growth_interval": "3", "enabled": "true"}
    ours = dlsim.LossScaler("torch", settings)
    assert ours.scale == 1024.0
    assert ours.parameters == dlsim.LossScaler("torch", texts).parameters


@pytest.mark.parametrize("policy", dlsim.policy_names())
def test_every_checkpoint_can_be_restored(policy: str) -> None:
    scaler, other = dlsim.LossScaler(policy, {}, "fp16"), dlsim.LossScaler(policy, {}, "fp16")
    for overflow in [True] * 5 + [False, True]:
        scaler.next(overflow)
    other.restore(scaler.checkpoint())
    assert _state(other) == _state(scaler)


@pytest.mark.parametrize("copied", _COPIES)
@pytest.mark.parametrize("policy", dlsim.policy_names())
def test_a_copy_goes_on_as_the_policy_does(policy: str, copied: Callable[[Any], Any]) -> None:
    scaler = dlsim.LossScaler(policy, {}, "fp16")
    overflows = [True, False, False, True] * 3
    for overflow in overflows:
        scaler.next(overflow)
    other = copied(scaler)
    assert (other.policy, other.parameters) == (scaler.policy, scaler.parameters)
    for overflow in [*overflows, *[False] * 2001, True]:
        assert _state(other) == _state(scaler)
        decided, expected = other.next(overflow), scaler.next(overflow)
        assert decided["skip"] == expected["skip"]


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: dlsim.LossScaler("torch", {"growth_interval": []}), TypeError, "growth_interval"),
        (lambda: dlsim.LossScaler("torch", {"zz": 1}), dlsim.UsageError, "unknown parameter"),
        (lambda: dlsim.LossScaler("torch", {}, "fp61"), dlsim.UsageError, "format: unknown name"),
        (lambda: dlsim.LossScaler("mxnet").restore({"next_loss_scale": "x"}), ValueError, "hexad"),
        (lambda: dlsim.LossScaler("torch").restart_at(math.nan), dlsim.UsageError, "scale: not a"),
        (lambda: dlsim.LossScaler("torch").restart_at(math.inf), dlsim.UsageError, "scale: not a"),
        (lambda: dlsim.LossScaler("torch").restart_at(-1.0), dlsim.UsageError, "scale: not a"),
    ],
)
def test_what_cannot_be_right_is_one_line(
    make: Callable[[], object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as error:
        make()
    assert "\n" not in str(error.value)
