#!/usr/bin/env bash
# How fast, against a compiled Transformer of the same size: bench-*.json for docs/performance.md.
# Usage: speed.sh [FOLDER [PART...]], parts: whole (training steps and prefills) kernels decode breakdown scaling. The benchmarks
# of a part compile side by side, JOBS at most, and are timed one at a time; what is done is not done again.
# STAGES_OF and STAGES_AT: what the stages of scaling are timed for, and at which lengths.
set -euo pipefail
torchcram=${TORCHCRAM:-torchcram}
device=${DEVICE:-cuda}
out=${1:-results}
shift || true
parts=${*:-whole kernels decode breakdown scaling}
mkdir -p "$out/parts"
export TORCHCRAM_TURNS=${TORCHCRAM_TURNS:-$out/parts/turns}

begin() { # NAME WORDS...: a benchmark in the background, into parts/NAME.json
    local file=$out/parts/$1.json
    shift
    test -e "$file" && return
    while test "$(jobs -rp | wc -l)" -ge "${JOBS:-12}"; do sleep 1; done
    {
        # Some of many at the same time have failed, for a reason that is not known: so there is another try.
        attempt "$file" "$@" || attempt "$file" "$@" || echo "failed: bench $*; see ${file%.json}.log" >&2
    } &
}

attempt() { # FILE WORDS...
    local file=$1
    shift
    $torchcram bench "$@" --device "$device" --json "$file.part" 2>&1 | tee "${file%.json}.log" || return 1
    if test -e "$file.part"; then mv "$file.part" "$file"; fi
}

end() { # PATTERN FILE: wait for all, and join what they found
    local file=$out/$2 found
    wait
    found=("$out"/parts/$1)
    if test -e "${found[0]}"; then $torchcram join "${found[@]}" --out "$file"; fi
}

for part in $parts; do
    case $part in
    whole)
        for length in 131072 32768 8192 2048; do
            for what in train prefill; do begin "$what-512-$(printf %06d $length)" $what --lengths $length; done
        done
        # The largest buffer holds every novel binding of SRCD at 131,072 positions.
        for what in train prefill; do begin "$what-4096-131072" $what --slots 4096 --lengths 131072; done
        begin train-mamba train --against mamba --lengths 2048
        for what in train prefill; do end "$what-*.json" "bench-$what.json"; done
        ;;
    kernels)
        begin kernels kernels
        end kernels.json bench-kernels.json
        ;;
    decode)
        for batch in 1 32; do
            for length in 2048 131072; do
                begin "decode-$batch-$length" decode --batches $batch --lengths $length --buffers 512,2048,2560,4096
            done
        done
        end "decode-*.json" bench-decode.json
        ;;
    breakdown)
        for length in 2048 131072; do begin "breakdown-$length" breakdown --lengths $length; done
        end "breakdown-*.json" bench-breakdown.json
        ;;
    scaling)
        for length in ${STAGES_AT:-2048 131072}; do
            for what in ${STAGES_OF:-train prefill}; do
                for stage in "all read everything" "few read everything" "all read a bounded buffer" \
                    "few read a bounded buffer" "few read a bounded buffer uncompiled"; do
                    begin "scaling-$what-$length-${stage// /-}" scaling --buffers 512 --lengths $length --what $what --stages "$stage"
                done
            done
        done
        begin scaling-stores scaling --what "" --lengths 131072
        end "scaling-*.json" bench-scaling.json
        ;;
    *)
        echo "$part is not a part; see the head of this file" >&2
        exit 1
        ;;
    esac
done
