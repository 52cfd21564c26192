"""Commands one after the other in one process, for a sweep: torch is imported, and a GPU made ready, only once.

`python -m torchcram.cli.worker` takes lines of JSON, each the words of a command and the file that what it prints goes
to, and answers each with a line: its exit status.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Sequence


def run(words: Sequence[str]) -> int:
    """One command, as `torchcram WORDS` would run it. Returns its exit status."""
    from torchcram.cli.main import app

    sys.argv = ["torchcram", *words]  # what result files say of how they were made
    try:
        app(list(words))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _tidy() -> None:
    """Give back what a command held: the next may need the memory, also that of a GPU, and compiles for itself."""
    sys.stdout.flush()
    sys.stderr.flush()
    torch = sys.modules.get("torch")
    if torch is not None and "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # code made for one size would become code for any
    gc.collect()
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def main() -> None:
    """Serve until there are no more commands."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    for line in sys.stdin:
        given = json.loads(line)
        log = os.open(given["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for printed in (1, 2):
            os.dup2(log, printed)
        os.close(log)
        status = run(given["words"])
        _tidy()
        print(status, file=answers, flush=True)


if __name__ == "__main__":
    main()
