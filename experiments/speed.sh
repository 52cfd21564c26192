#!/usr/bin/env bash
# How fast, against a compiled Transformer of the same size: bench-*.json for docs/performance.md.
# Usage: speed.sh [FOLDER [PART...]], parts: warm kernels train prefill decode breakdown scaling. `warm`, which is not among
# the parts that run by default, compiles for the others, all at once, and times nothing.
set -euo pipefail
torchcram=${TORCHCRAM:-torchcram}
device=${DEVICE:-cuda}
out=${1:-results}
shift || true
parts=${*:-kernels train prefill decode breakdown scaling}
mkdir -p "$out/parts"

bench() { # FILE WORDS...: a benchmark, unless its file is there; FILE.part is of one that did not come to its end
    local file=$1
    shift
    test -e "$file" && return
    $torchcram bench "$@" --device "$device" --json "$file.part"
    if test -e "$file.part"; then mv "$file.part" "$file"; fi
}

warm() { # WORDS...: in the background, JOBS at a time
    while test "$(jobs -rp | wc -l)" -ge "${JOBS:-6}"; do sleep 1; done
    $torchcram bench "$@" --device "$device" >"$out/parts/warm-$(echo "$*" | tr -c 'a-z0-9\n' '-').log" 2>&1 || true &
}

for part in $parts; do
    case $part in
    warm)
        for length in 2048 8192 32768 131072; do
            warm train --lengths "$length"
            warm prefill --lengths "$length"
        done
        for what in train prefill; do
            warm "$what" --slots 4096 --lengths 131072
            for length in 2048 131072; do warm scaling --buffers 512 --lengths "$length" --what "$what"; done
        done
        warm train --against mamba --lengths 2048
        wait
        ;;
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
