"""One training step or prefill of the benchmarks' models, for watch.py.

Usage: step.py {train,prefill} {cram,transformer,…} LENGTH [ROWS EVENTS]: how many rows and events the longest lists of
a sequence hold, which nobody can count here. With 1.5 % of reads, 3 % of audits and 512 slots they are, in training and
in a prefill: at 2,048 positions 120 1228 and 49 1213, at 8,192 413 1957 and 149 1914, at 32,768 1520 2677 and 546 2597,
at 131,072 5919 3334 and 2012 3268.
"""

import sys

import torch
import watch

from torchcram.bench.whole import WARM_UP, Contender, Size, imposed
from torchcram.memory import RoutingPolicy
from torchcram.models import baseline
from torchcram.ops import Lengths

watch.watching(False)
what, model, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
needed = [int(word) for word in sys.argv[4:]]
fit = Lengths.fit
Lengths.fit = lambda self, lists, call=None: fit(self, needed[: len(lists)], call)
place, size = torch.device("cuda"), Size()
config = size.cram() if model == "cram" else baseline(model, size.cram())
batch = max(1, size.tokens // length)
policy = RoutingPolicy()
if model == "cram":
    policy = imposed(size, batch, length, config.layers, place, training=what == "train")
contender = Contender(config, size, place)
tokens = torch.zeros(batch, length, dtype=torch.int64, device=place)
run = (contender.train if what == "train" else contender.prefill)(tokens, policy)
for _ in range(WARM_UP):
    run()
watch.watching(True)
run()  # which records it
watch.watching(False)
