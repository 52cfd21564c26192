#!/usr/bin/env bash
# How fast, against a compiled Transformer of the same size: bench-*.json for docs/performance.md.
# Usage: speed.sh [FOLDER [PART...]], parts: kernels train prefill decode breakdown scaling.
set -euo pipefail
torchcram=${TORCHCRAM:-torchcram}
device=${DEVICE:-cuda}
out=${1:-results}
shift || true
parts=${*:-kernels train prefill decode breakdown scaling}
mkdir -p "$out/parts"

bench() { # FILE WORDS...: a benchmark, unless its file is there
    local file=$1
    shift
    test -e "$file" || $torchcram bench "$@" --device "$device" --json "$file"
}

for part in $parts; do
    case $part in
    kernels) bench "$out/bench-kernels.json" kernels ;;
    train | prefill)
        # The largest buffer holds every novel binding of SRCD at 131,072 positions.
        bench "$out/parts/$part-512.json" "$part"
        bench "$out/parts/$part-4096.json" "$part" --slots 4096 --lengths 131072
        files=("$out/parts/$part-512.json" "$out/parts/$part-4096.json")
        if test "$part" = train; then
            bench "$out/parts/train-mamba.json" train --against mamba --lengths 2048
            files+=("$out/parts/train-mamba.json")
        fi
        test -e "$out/bench-$part.json" || $torchcram join "${files[@]}" --out "$out/bench-$part.json"
        ;;
    decode) bench "$out/bench-decode.json" decode --buffers 512,2048 ;;
    breakdown) bench "$out/bench-breakdown.json" breakdown ;;
    scaling) bench "$out/bench-scaling.json" scaling --buffers 512 ;;
    *)
        echo "$part is not a part; see the head of this file" >&2
        exit 1
        ;;
    esac
done
