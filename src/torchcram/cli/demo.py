"""The demonstration: one model, fed whole and as a stream."""

import torch
from rich.console import Console
from rich.table import Table

from torchcram.config import CramConfig
from torchcram.models import Cram


def run() -> None:
    """Show that a stream gives what the whole sequence gives, and what the model read."""
    torch.manual_seed(0)
    config = CramConfig.preset("small", inputs="tokens", vocabulary=256, outputs="tokens")
    model = Cram(config.override({"episodic.slots": 64})).eval()
    tokens = torch.randint(0, 256, (2, 512))
    dt = torch.empty(2, 512).exponential_()
    table = Table(title="512 positions, 64 buffer slots: the same results however they arrive")
    for column in ("fed as", "largest difference", "reads", "layer reads", "pairs", "writes"):
        table.add_column(column, justify="left" if column == "fed as" else "right")
    with torch.no_grad():
        whole = model(tokens, dt=dt)
        for label, size in (("whole", 512), ("chunks of 100", 100), ("one at a time", 1)):
            state, outs, ledger = None, [], None
            for begin in range(0, 512, size):
                part = slice(begin, begin + size)
                out = model(tokens[:, part], dt=dt[:, part], state=state)
                state = out.state
                outs.append(out.logits)
                ledger = out.ledger() if ledger is None else ledger + out.ledger()
            assert ledger is not None
            difference = float((torch.cat(outs, dim=1) - whole.logits).abs().max())
            shares = (ledger.reads, ledger.layer_reads, ledger.pairs, ledger.writes)
            table.add_row(label, f"{difference:.1e}", *(f"{share:.1%}" for share in shares))
    console = Console()
    console.print(table)
    console.print(f"{sum(p.numel() for p in model.parameters()):,} parameters, untrained: the router still guesses.")
