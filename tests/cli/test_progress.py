"""The display of a run: it moves between evaluations, on a terminal only, and messages stay above it."""

import io
import time

import pytest
from rich.console import Console

from tests.training.test_loop import trainer
from torchcram.cli.progress import Display, describe, duration


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120, highlight=False, color_system=None)


def shown(display: Display) -> str:
    paper = Console(file=io.StringIO(), width=120)
    paper.print(display.render())
    return paper.file.getvalue()


def test_the_bar_moves_between_evaluations():
    run = trainer(steps=200)
    display = Display(console(terminal=True), run)
    first = shown(display)
    assert "acquire" in first
    assert "step 0/200" in first
    assert "–:–– left" in first
    assert "the first evaluation comes at step 10" in first
    run.step = 7
    second = shown(display)
    assert "step 7/200" in second
    assert "–:–– left" not in second
    run.step = 100
    assert shown(display).count("━") >= second.count("━")


def test_the_last_evaluation_is_shown():
    run = trainer(steps=10)
    (progress,) = run.run()
    display = Display(console(terminal=True), run)
    display.report(progress)
    text = shown(display)
    assert f"{progress.loss:.3f}" in text
    assert "100.00% (OPT" in text
    assert f"{progress.evaluation.mean_quality:.2f}" in text
    assert "0.000 nats" in text
    assert f"{1000 * progress.step_seconds:.0f} ms" in text
    for name in ("loss", "novel", "recurring", "reads", "q̄", "price", "a step"):
        assert name in text


def test_messages_appear_above_the_live_display():
    out = console(terminal=True)
    run = trainer(steps=10)
    with Display(out, run) as display:
        for progress in run.run():
            out.print("a message")
            display.report(progress)
    text = out.file.getvalue()
    assert "a message" in text
    assert text.rindex("step 10/10") > text.index("a message")
    assert "accuracy novel" not in text


def test_a_change_of_phase_is_told():
    out = console(terminal=True)
    run = trainer(steps=30)
    with Display(out, run) as display:
        for number, progress in enumerate(run.run()):
            display.report(progress)
            if number == 0:
                run.consolidator.released_at = run.step
    assert "acquire → consolidate, released at step 10" in out.file.getvalue()


@pytest.mark.parametrize("dumb", [False, True])
def test_elsewhere_there_is_a_plain_line_an_evaluation(dumb, monkeypatch):
    monkeypatch.setenv("TERM", "dumb" if dumb else "xterm")
    out = console(terminal=dumb)
    run = trainer(steps=20)
    with Display(out, run) as display:
        for progress in run.run():
            display.report(progress)
    first, *lines = out.file.getvalue().splitlines()
    size = sum(p.numel() for p in run.model.parameters())
    assert first == f"cram with {size:,} parameters on srcd: steps 1 to 20, a line every 10"
    assert len(lines) == 2
    assert lines[1] == describe(progress, 20)
    assert f"q̄ {progress.evaluation.mean_quality:.2f}" in lines[1]
    assert "\x1b" not in out.file.getvalue()


def test_time_left_goes_by_the_pace_of_late():
    run = trainer(steps=100)
    display = Display(console(terminal=False), run)
    begun = time.perf_counter()
    display._marks.clear()
    display._marks.append((begun - 10, 0))
    run.step = 50
    assert display.seconds_left() == pytest.approx(10, abs=0.5)
    run.step = 0
    assert display.seconds_left() is None


@pytest.mark.parametrize(("seconds", "text"), [(None, "–:––"), (5, "0:05"), (125, "2:05"), (3725.4, "1:02:05")])
def test_durations_read_like_a_clock(seconds, text):
    assert duration(seconds) == text


def test_a_quiet_console_shows_nothing():
    out = Console(file=io.StringIO(), force_terminal=True, quiet=True)
    run = trainer(steps=10)
    with Display(out, run) as display:
        for progress in run.run():
            display.report(progress)
    assert out.file.getvalue() == ""
