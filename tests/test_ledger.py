"""The ledger against counts made here, from a plain replay of every buffer."""

import dataclasses
import os
import time

import pytest
import torch

from tests.models.feeding import feed
from tests.models.replay import Watch, replay
from torchcram import Ledger, RoutingPolicy, measure
from torchcram.ops import euler_steps, use

EMPTY = Ledger(
    training=False,
    positions=0,
    positions_reading=0,
    layer_read_counts=(0, 0),
    audit_counts=(0, 0),
    pair_counts=(0, 0),
    write_counts=(0, 0),
    compared_count=0,
    dense_pairs=0,
    buffers=2,
)
SOME = Ledger(
    training=False,
    positions=20,
    positions_reading=8,
    layer_read_counts=(5, 6),
    audit_counts=(1, 3),
    pair_counts=(30, 12),
    write_counts=(10, 0),
    compared_count=21,
    dense_pairs=210,
    buffers=1,
)


def test_shares():
    assert SOME.reads == 8 / 20
    assert SOME.layer_reads == 11 / 40
    assert SOME.audits == 4 / 40
    assert SOME.pairs == 42 / 420
    assert SOME.compared == 21 / 420
    assert SOME.writes == 10 / 20, "of the layers that own a buffer"


def test_shares_of_nothing_are_zero():
    assert set(EMPTY.to_dict().values()) == {0}
    assert set(dataclasses.replace(EMPTY, buffers=0).to_dict().values()) == {0}


def test_training_reads_have_a_name_of_their_own():
    assert list(SOME.to_dict()) == ["reads", "layer_reads", "audits", "pairs", "compared", "writes"]
    training = dataclasses.replace(SOME, training=True).to_dict()
    assert list(training) == ["reads_training", "layer_reads", "audits", "pairs", "compared", "writes"]
    assert training["reads_training"] == 8 / 20
    assert str(dataclasses.replace(SOME, training=True)).startswith("20 positions: reads_training 40.00%, ")


def test_as_text():
    text = "20 positions: reads 40.00%, layer_reads 27.50%, audits 10.00%, pairs 10.00%, "
    text += "compared 5.00%, writes 50.00%"
    assert str(SOME) == text


def test_addition():
    double = SOME + SOME
    assert double == dataclasses.replace(
        SOME,
        positions=40,
        positions_reading=16,
        layer_read_counts=(10, 12),
        audit_counts=(2, 6),
        pair_counts=(60, 24),
        write_counts=(20, 0),
        compared_count=42,
        dense_pairs=420,
    )
    assert double.to_dict() == SOME.to_dict()
    assert EMPTY + dataclasses.replace(SOME, buffers=2) == dataclasses.replace(SOME, buffers=2)


def test_what_does_not_add_up():
    counts = ("layer_read_counts", "audit_counts", "pair_counts", "write_counts")
    one_layer = dataclasses.replace(SOME, **dict.fromkeys(counts, (1,)))
    for other in (dataclasses.replace(SOME, training=True), one_layer):
        with pytest.raises(ValueError, match=r"training and evaluation, or of models of other depth, do not add up"):
            SOME + other
    with pytest.raises(TypeError):
        SOME + 1


CASES = {
    "bounded": {},
    "some layers, convolution": {"episodic.layers": [0, 2], "episodic.convolution": 3, "episodic.slots": 5},
    "unbounded": {"episodic.slots": None},
    "exact quality": {"router.quality": "exact"},
    "exact quality, some layers": {"router.quality": "exact", "episodic.layers": [1]},
    "no buffers": {"episodic.layers": []},
    "no index": {"contradiction.rank": 0},
}
POLICIES = {
    "routed": {},
    "dense": {"reads": "dense"},
    "dense but some": {"reads": "dense", "skip": 0.3},
    "off": {"reads": "off"},
    "audited": {"audit": 0.3},
    "all audited": {"audit": 1.0},
}
LENGTH, CUT = 60, 25


@pytest.fixture
def stream(events):
    """Two rows with padding and packed sequences, to be cut in the middle of one of them."""
    tokens, dt = events(2, LENGTH, seed=121)
    mask = torch.rand(2, LENGTH, generator=torch.Generator().manual_seed(122)) < 0.8
    start = torch.zeros(2, LENGTH, dtype=torch.bool)
    start[0, 0] = start[0, 40] = start[1, 18] = True
    return tokens, {"dt": dt, "mask": mask | start, "start": start}


def counted(model, watch, calls, outs, mask, start):
    """The ledger of some of the calls, from what was routed and a replay of every buffer along all of them."""
    here = torch.zeros_like(mask)
    for part in calls:
        here[:, part] = True
    actions = torch.cat([out.routing for out in outs], dim=1)
    audited = torch.stack([torch.cat([out.layers[i].audits for out in outs], 1) for i in range(3)], -1)
    assert not (audited & ~mask.unsqueeze(-1)).any()
    exact = model.config.router.quality == "exact"
    reads = torch.zeros_like(actions, dtype=torch.bool)
    pairs, writes = [0, 0, 0], [0, 0, 0]
    # How many are compared is checked where the index is; that all are counted, here.
    asked = [
        out.guidance.consulted.pairs if out.guidance and out.guidance.consulted else mask[:, 0] * 0 for out in outs
    ]
    compared = sum(int(asked[part.start > 0].sum()) for part in calls)
    for layer in model.config.episodic_layers:
        reads[..., layer] = mask if exact else actions[..., layer] == 1
        for row, priorities in enumerate(watch.priorities(layer).tolist()):
            starts = start[row].nonzero().flatten().tolist()
            run = replay(priorities, model.config.episodic.slots, mask[row].tolist(), starts)
            for t in here[row].nonzero().flatten().tolist():
                executed = bool(reads[row, t, layer]) or bool(audited[row, t, layer])
                pairs[layer] += len(run.readable[t]) * executed
                writes[layer] += run.written[t]
    # Dense causal attention scores a pair with itself and each real position before in the same sequence.
    dense = 0
    for row in range(len(mask)):
        age = 0
        for t in range(mask.shape[1]):
            age = 0 if start[row, t] else age
            age += bool(mask[row, t])
            dense += age * bool(mask[row, t] & here[row, t])
    reads &= here.unsqueeze(-1)
    return Ledger(
        training=False,
        positions=int((mask & here).sum()),
        positions_reading=int(reads.any(-1).sum()),
        layer_read_counts=tuple(reads.sum((0, 1)).tolist()),
        audit_counts=tuple((audited & here.unsqueeze(-1)).sum((0, 1)).tolist()),
        pair_counts=tuple(pairs),
        write_counts=tuple(writes),
        compared_count=compared,
        dense_pairs=dense,
        buffers=len(model.config.episodic_layers),
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_ledger_counts_what_was_executed(case, policy, lively, stream):
    model = lively(CASES[case], seed=4)
    tokens, along = stream
    rule = RoutingPolicy(**POLICIES[policy], generator=torch.Generator().manual_seed(123))
    first, second = slice(0, CUT), slice(CUT, LENGTH)
    with Watch(model) as watch:
        out = model(tokens[:, first], policy=rule, **{name: x[:, first] for name, x in along.items()})
        rest = {name: x[:, second] for name, x in along.items()}
        later = model(tokens[:, second], policy=rule, state=out.state, **rest)
    expected = [counted(model, watch, [part], [out, later], along["mask"], along["start"]) for part in (first, second)]
    assert out.ledger() == expected[0]
    assert later.ledger() == expected[1]
    assert out.ledger() + later.ledger() == counted(
        model, watch, [first, second], [out, later], along["mask"], along["start"]
    )
    assert out.ledger().audits == 0 or "audit" in POLICIES[policy]


@torch.no_grad()
def test_exact_quality_counts_every_read(lively, events):
    tokens, dt = events(2, 30, seed=124)
    for changes, layers in [({}, 3), ({"episodic.layers": [1]}, 1)]:
        for reads in ("routed", "off"):
            model = lively(changes | {"router.quality": "exact"}, seed=4)
            ledger = model(tokens, dt=dt, policy=RoutingPolicy(reads=reads, audit=0.5)).ledger()
            assert ledger.reads == 1
            assert ledger.layer_reads == layers / 3
            assert ledger.audits == 0


@torch.no_grad()
def test_dense_reads_of_an_unbounded_buffer(lively, events):
    """All but the pair of a position with itself."""
    tokens, dt = events(2, 30, seed=125)
    ledger = lively({"episodic.slots": None})(tokens, dt=dt, policy=RoutingPolicy(reads="dense")).ledger()
    assert ledger.dense_pairs == 2 * 30 * 31 // 2
    assert ledger.pair_counts == (2 * 30 * 29 // 2,) * 3
    assert (ledger.reads, ledger.layer_reads, ledger.writes) == (1, 1, 1)


@torch.no_grad()
def test_audits_are_apart(lively, events):
    model = lively({"contradiction.rank": 0}, seed=4)
    tokens, dt = events(2, 60, seed=126)
    plain = model(tokens, dt=dt).ledger()
    audited = model(tokens, dt=dt, policy=RoutingPolicy(audit=0.3, generator=torch.Generator().manual_seed(1))).ledger()
    assert audited.layer_read_counts == plain.layer_read_counts
    assert audited.positions_reading == plain.positions_reading
    skipped = 360 - sum(plain.layer_read_counts)
    assert abs(sum(audited.audit_counts) - 0.3 * skipped) < 4 * (0.21 * skipped) ** 0.5
    assert audited.pairs > plain.pairs


def test_training_is_marked(lively, events):
    model = lively().train()
    tokens, dt = events(2, 30, seed=127)
    out = model(tokens, dt=dt)
    assert out.ledger().training
    assert "reads_training" in out.ledger().to_dict()
    assert out.ledger().layer_read_counts == tuple((out.routing == 1).sum((0, 1)).tolist())
    with pytest.raises(ValueError, match="do not add up"):
        out.ledger() + model.eval()(tokens, dt=dt).ledger()


@torch.no_grad()
def test_ledgers_of_chunks_add_up(lively, events):
    model = lively(seed=4)
    tokens, dt = events(2, 50, seed=128)
    first, second, third = (out.ledger() for out in feed(model, tokens, [20, 1, 29], dt=dt))
    assert first + second + third == model(tokens, dt=dt).ledger()


def test_flops_of_matrix_products():
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    with measure() as cost:
        a @ b
    assert cost.flops == 2 * 3 * 4 * 5
    with measure() as cost:
        torch.nn.functional.linear(a, b.t(), torch.zeros(5))
        a[None].expand(7, 3, 4) @ b
    assert cost.flops == 8 * 2 * 3 * 4 * 5


def test_flops_of_products_in_place():
    """The backward of the Euler steps accumulates in place."""
    a, b, total = torch.randn(3, 4), torch.randn(4, 5), torch.zeros(3, 5)
    with measure() as cost:
        total.addmm_(a, b)
    assert cost.flops == 2 * 3 * 4 * 5


def test_flops_of_a_backward_pass():
    """Euler steps: K products forward, 2 K backward, whatever form runs."""
    h, drive, gate = torch.randn(3, 7, 8).unbind()
    weight = torch.randn(8, 8, requires_grad=True)
    for form in ("reference", "fast"):
        with use(form), measure() as cost:
            euler_steps(h.clone().requires_grad_(), drive, gate, weight, 3).sum().backward()
        assert cost.flops == 3 * 3 * (2 * 7 * 8 * 8), form


def test_seconds_and_bytes():
    with measure() as cost:
        assert cost.seconds == 0
        time.sleep(0.05)
        torch.ones(64 << 20, dtype=torch.uint8)
    assert 0.05 <= cost.seconds < 5
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 64 << 20 < cost.peak_bytes < machine
