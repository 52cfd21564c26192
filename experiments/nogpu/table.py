"""What was noted, as a table: launches by name, how much they move or multiply, and how long that takes at least.

Usage: table.py LOG [--in-order]. Of compiled kernels and products the times are what memory (4 TB/s) and arithmetic
(640 TFLOP/s in bfloat16) allow, and 2 microseconds for the smallest; of kernels of this project's own nothing is known.
"""

import re
import subprocess
import sys
from collections import defaultdict
from typing import NamedTuple

BYTES, FLOPS, LEAST = 4.0e12, {2: 640e12, 4: 300e12, 8: 60e12}, 2.0


class Launch(NamedTuple):
    kind: str
    name: str
    microseconds: float
    gigabytes: float
    grid: str


def at_least(gigabytes: float, flops: float = 0.0, width: int = 2) -> float:
    return max(LEAST, gigabytes * 1e15 / BYTES, flops * 1e6 / FLOPS[width])


def launches(path: str) -> list[Launch]:
    with open(path) as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    kernels = sorted({line[1] for line in lines if line[0] == "kernel"})
    plain = subprocess.run(["c++filt"], input="\n".join(kernels), capture_output=True, text=True, check=True).stdout
    named = dict(zip(kernels, plain.splitlines(), strict=True))
    found, moves = [], "None"
    for line in lines:
        match line:
            case ["moves", much]:
                moves = much
            case ["triton", name, grid, *_] if name.startswith("triton_"):
                gigabytes = 0.0 if moves == "None" else float(moves)
                found.append(Launch("compiled", name, at_least(gigabytes), gigabytes, grid))
            case ["triton", name, grid, *_]:
                found.append(Launch("own", name, 0.0, 0.0, grid))
            case ["gemm", sizes, width, out]:
                m, n, k, batch = map(int, sizes.split(","))
                gigabytes = batch * ((m + n) * k * int(width) + m * n * int(out)) / 1e9
                name = f"product {m} x {n} x {k}" + (f", {batch} times" if batch > 1 else "")
                found.append(
                    Launch("product", name, at_least(gigabytes, 2.0 * m * n * k * batch, int(width)), gigabytes, "")
                )
            case ["kernel", name, grid, *_]:
                words = re.findall(r"\w*(?:Functor|functor|kernel|launch)\w*", named[name])
                found.append(Launch("PyTorch's", " ".join(dict.fromkeys(words))[:80], LEAST, 0.0, grid))
            case ["memcpy" | "memset" as what, size, *_]:
                found.append(Launch("memory", f"{what} of {size} bytes", at_least(int(size) / 1e9), 0.0, ""))
    return found


def main(path: str, in_order: bool) -> None:
    found = launches(path)
    if in_order:
        for each in found:
            print(f"{each.microseconds:8.1f} us {each.gigabytes:8.3f} GB {each.grid:>14}  {each.name[:120]}")
        return
    by_name: dict[str, list[Launch]] = defaultdict(list)
    by_kind: dict[str, list[Launch]] = defaultdict(list)
    for each in found:
        by_name[each.name].append(each)
        by_kind[each.kind].append(each)
    for groups in (by_name, by_kind):
        for name, some in sorted(groups.items(), key=lambda pair: -sum(each.microseconds for each in pair[1])):
            spent, moved = sum(each.microseconds for each in some), sum(each.gigabytes for each in some)
            print(f"{spent:9.1f} us {moved:8.3f} GB {len(some):5d}  {name[:120]}")
        print()


if __name__ == "__main__":
    main(sys.argv[1], "--in-order" in sys.argv)
