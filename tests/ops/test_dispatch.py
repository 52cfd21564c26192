"""Which form of an operation runs."""

import importlib
import inspect

import pytest
import torch

from torchcram.ops import dispatch, use

# (folder, table of its forms, public function): a table for each function that has two forms
TABLES = [
    ("decay", "_FORMS", "decay_scan"),
    ("euler", "_FORMS", "euler_steps"),
    ("expiry", "_FORMS", "expiry"),
    ("hashed", "_FORMS", "hashed"),
    ("read", "_FORMS", "episodic_read"),
    ("route", "_FORMS", "route"),
    ("rows", "_COMPACT", "compact"),
    ("rows", "_GATHER", "gather_rows"),
    ("rows", "_SCATTER", "scatter_rows"),
    ("shift", "_FORMS", "previous"),
]


@pytest.mark.parametrize(("folder", "table", "name"), TABLES, ids=[row[2] for row in TABLES])
def test_each_operation_runs_the_form_asked_for(monkeypatch, folder, table, name):
    module = importlib.import_module(f"torchcram.ops.{folder}")
    forms = getattr(module, table)
    assert set(forms) in (set(dispatch.FORMS), {"reference", "fast"})
    assert forms["fast"].__module__.endswith(".fast")
    assert forms["reference"].__module__.endswith(".reference")
    parameters = [list(inspect.signature(form).parameters) for form in forms.values()]
    assert parameters[0] == parameters[1] == list(inspect.signature(getattr(module, name)).parameters)

    calls = []
    for form in forms:
        monkeypatch.setitem(forms, form, lambda *_, form=form: calls.append(form) or (None, None, None))
    arguments = [torch.zeros(1)] * len(parameters[0])
    getattr(module, name)(*arguments)
    for form in dispatch.FORMS:
        with use(form):
            getattr(module, name)(*arguments)
    assert calls == ["fast", "reference", "fast", "triton" if "triton" in forms else "fast"]


def test_blocks_nest_and_leave_nothing_behind():
    forms = {"reference": "reference", "fast": "fast"}
    with use("reference"):
        with use("fast"):
            assert dispatch.choose(forms) == "fast"
        assert dispatch.choose(forms) == "reference"
    assert dispatch.choose(forms) == "fast"


def test_an_error_inside_the_block_ends_it():
    with pytest.raises(RuntimeError, match="inside"), use("reference"):
        raise RuntimeError("inside")
    assert dispatch.choose({"reference": "reference", "fast": "fast"}) == "fast"


def test_an_unknown_form_is_refused_with_the_allowed_ones():
    with (
        pytest.raises(ValueError, match=r"'slow' is not possible; allowed: 'reference', 'fast', 'triton'"),
        use("slow"),
    ):
        pass


@pytest.mark.parametrize(
    "rows",
    [
        torch.arange(24.0).view(2, 4, 3),
        torch.arange(48.0).view(2, 4, 6)[..., 2:5],
        torch.arange(12.0).view(1, 4, 3).transpose(0, 1),
        torch.arange(24.0).view(4, 2, 3)[:, :1],
        torch.arange(24.0).view(2, 4, 3).transpose(0, 1),
        torch.arange(24.0).view(2, 3, 4).transpose(1, 2),
        torch.arange(24.0).view(2, 4, 3)[:, ::2],
        torch.zeros(0, 4, 3),
        torch.zeros(2, 0, 3),
    ],
    ids=["whole", "columns", "one position", "first of all", "swapped", "turned", "every other", "no rows", "empty"],
)
def test_rows_one_after_the_other(rows):
    found = dispatch.flat(rows)
    assert torch.equal(found, rows.reshape(-1, 3))
    assert found.stride(1) == 1 or found.numel() == 0


def test_rows_that_are_evenly_spaced_are_not_copied():
    wide = torch.zeros(2, 4, 6)
    assert dispatch.flat(wide[..., 2:5]).data_ptr() == wide[..., 2:].data_ptr()
