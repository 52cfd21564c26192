"""Working memory against the differential equations it stands for."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torchdiffeq import odeint

from torchcram.config import WorkingConfig
from torchcram.memory import Timeline, WorkingMemory

WIDTH = 4


def working(seed: int = 0, **config) -> WorkingMemory:
    torch.manual_seed(seed)
    memory = WorkingMemory(WIDTH, WorkingConfig(**config)).double()
    nn.init.normal_(memory.gate_weight)
    nn.init.normal_(memory.gate_bias)
    nn.init.normal_(memory.inward.weight)
    nn.init.normal_(memory.recurrent)
    return memory


def sequence(length: int, seed: int = 0) -> tuple[Tensor, Timeline, Tensor]:
    """Two sequences at irregular times, and a state from before."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(2, length, WIDTH, generator=generator, dtype=torch.float64)
    dt = torch.rand(2, length, generator=generator, dtype=torch.float64) ** 3 * 20
    state = torch.randn(2, WIDTH, generator=generator, dtype=torch.float64)
    return u, Timeline.build(dt), state


def states_alone(memory: WorkingMemory, u: Tensor, clock: Timeline, state: Tensor) -> Tensor:
    """s_t for all t: with the gate shut the Euler steps change nothing."""
    shut = working(**memory.config.to_dict())
    shut.load_state_dict(memory.state_dict())
    nn.init.zeros_(shut.gate_weight)
    nn.init.constant_(shut.gate_bias, -1e9)
    return shut(u, clock, state)[1]


@torch.no_grad()
def test_many_euler_steps_solve_the_ode_of_the_expert():
    u, clock, state = sequence(5)
    memory = working(steps=1)
    start = states_alone(memory, u, clock, state)
    drive = memory.inward(u)[..., WIDTH:]
    gate = torch.sigmoid(memory.gate_weight * clock.log_gap.unsqueeze(-1) + memory.gate_bias)

    def slope(_: Tensor, h: Tensor) -> Tensor:
        return gate * torch.tanh(h @ memory.recurrent.T + drive)

    solution = odeint(slope, start, torch.tensor([0.0, 1.0], dtype=torch.float64), rtol=1e-10, atol=1e-12)[-1]
    errors = []
    for steps in (32, 64, 128, 1024):
        fine = working(steps=steps)
        fine.load_state_dict(memory.state_dict())
        _, h, _ = fine(u, clock, state)
        errors.append((h - solution).norm().item())
    assert errors[-1] < 1e-3 * (solution - start).norm()
    # First order: twice the steps, half the error.
    for coarse, finer in pairwise(errors[:3]):
        assert 1.85 < coarse / finer < 2.15, errors


@torch.no_grad()
def test_the_carried_state_solves_the_decay_equation_over_irregular_gaps():
    u, clock, state = sequence(7)
    memory = working(fastest=0.5, slowest=100.0)
    ours = states_alone(memory, u, clock, state)
    rate = nn.functional.softplus(memory.rate)
    entering = memory.strength * memory.inward(u)[..., :WIDTH]
    for b in range(2):
        s = state[b]
        for t in range(7):
            span = torch.stack([torch.zeros_like(clock.gap[b, t]), clock.gap[b, t]])
            s = odeint(lambda _, y: -rate * y, s, span, rtol=1e-9, atol=1e-11)[-1] + entering[b, t]
            torch.testing.assert_close(ours[b, t], s, rtol=1e-6, atol=1e-7)
    *_, last = memory(u, clock, state)
    torch.testing.assert_close(last, ours[:, -1])


@torch.no_grad()
def test_without_a_carry_there_is_no_memory():
    memory = working(carry="none")
    u, clock, state = sequence(6)
    out, h, after = memory(u, clock, state)
    moved = u.clone()
    moved[:, 2] += 1
    out_moved, h_moved, _ = memory(moved, clock, state + 1)
    others = [0, 1, 3, 4, 5]
    assert torch.equal(h_moved[:, others], h[:, others])
    assert torch.equal(out_moved[:, others], out[:, others])
    assert (h_moved[:, 2] != h[:, 2]).all()
    assert torch.equal(after, state)


@torch.no_grad()
def test_with_a_carry_the_past_is_felt_and_the_future_is_not():
    memory = working()
    u, clock, state = sequence(6)
    _, h, _ = memory(u, clock, state)
    moved = u.clone()
    moved[:, 2] += 1
    _, h_moved, _ = memory(moved, clock, state)
    assert torch.equal(h_moved[:, :2], h[:, :2])
    assert (h_moved[:, 3:] != h[:, 3:]).any(-1).all()


@torch.no_grad()
def test_simultaneous_events_enter_whole():
    memory = working()
    u, _, state = sequence(3)
    clock = Timeline.build(torch.zeros(2, 3, dtype=torch.float64))
    entering = memory.strength * memory.inward(u)[..., :WIDTH]
    *_, after = memory(u, clock, state)
    torch.testing.assert_close(after, state + entering.sum(1))


@torch.no_grad()
def test_padding_leaves_the_state_alone_and_a_start_forgets_it():
    memory = working()
    u, clock, state = sequence(4)
    mask = torch.tensor([[True, True, False, False], [False] * 4])
    *_, after = memory(u, Timeline.build(clock.gap, mask=mask), state)
    *_, short = memory(u[:, :2], Timeline.build(clock.gap[:, :2]), state)
    torch.testing.assert_close(after, torch.stack([short[0], state[1]]))

    start = torch.zeros(2, 4, dtype=torch.bool)
    start[:, 2] = True
    _, h, after = memory(u, Timeline.build(clock.gap, start=start), state)
    _, alone, last = memory(u[:, 2:], Timeline.build(clock.gap[:, 2:]), torch.zeros_like(state))
    torch.testing.assert_close(h[:, 2:], alone)
    torch.testing.assert_close(after, last)


def test_decay_times_are_spread_between_the_fastest_and_the_slowest():
    memory = WorkingMemory(9, WorkingConfig(fastest=0.1, slowest=1000.0))
    times = 1 / nn.functional.softplus(memory.rate.detach())
    torch.testing.assert_close(times.log10(), torch.linspace(-1, 3, 9), atol=1e-3, rtol=0)


def test_the_state_keeps_unit_variance_at_unit_gaps():
    memory = WorkingMemory(3, WorkingConfig(fastest=0.5, slowest=20.0))
    decay = torch.exp(-nn.functional.softplus(memory.rate))
    torch.testing.assert_close(memory.strength**2 / (1 - decay**2), torch.ones(3))


def test_the_output_is_a_map_of_h():
    memory = working()
    out, h, _ = memory(*sequence(3))
    torch.testing.assert_close(out, h @ memory.outward.weight.T)
