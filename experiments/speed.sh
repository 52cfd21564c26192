#!/usr/bin/env bash
# How fast, against a compiled Transformer of the same size: bench-*.json for docs/performance.md.
# Usage: speed.sh [FOLDER [PART...]], parts: train prefill decode kernels breakdown scaling, one after the other. The benchmarks
# of a part compile side by side, JOBS at most and as many as a GPU's memory holds (ROOM, in GB), and are timed one at a time,
# while none compiles; what is done is not done again. STAGES_OF and STAGES_AT: what the stages of scaling are timed for, and
# at which lengths.
set -euo pipefail
torchcram=${TORCHCRAM:-torchcram}
device=${DEVICE:-cuda}
out=${1:-results}
shift || true
parts=${*:-train prefill decode kernels breakdown scaling}
mkdir -p "$out/parts"
export TORCHCRAM_TURNS=${TORCHCRAM_TURNS:-$out/parts/turns}

declare -A size=() # by process, in GB
begin() { # GB NAME WORDS...: a benchmark in the background, into parts/NAME.json, once there is room for it
    local needs=$1 file=$out/parts/$2.json count taken pid
    shift 2
    test -e "$file" && return
    while :; do
        count=0 taken=0
        for pid in $(jobs -rp); do count=$((count + 1)) taken=$((taken + size[$pid])); done
        if test "$count" -eq 0 || test "$count" -lt "${JOBS:-12}" -a $((taken + needs)) -le "${ROOM:-150}"; then break; fi
        sleep 1
    done
    {
        # Some of many at the same time have failed, for a reason that is not known: so there is another try.
        attempt "$file" "$@" || attempt "$file" "$@" || echo "failed: bench $*; see ${file%.json}.log" >&2
    } &
    size[$!]=$needs
}

attempt() { # FILE WORDS...
    local file=$1
    shift
    $torchcram bench "$@" --device "$device" --json "$file.part" 2>&1 | tee "${file%.json}.log" || return 1
    if test -e "$file.part"; then mv "$file.part" "$file"; fi
}

end() { # NAME: wait for all, and join what was found
    local file=$out/bench-$1.json found
    wait
    found=("$out"/parts/$1*.json)
    if test -e "${found[0]}"; then $torchcram join "${found[@]}" --out "$file"; fi
}

for part in $parts; do
    case $part in
    train)
        # The largest buffer holds every novel binding of SRCD at 131,072 positions.
        begin 42 train-512-131072 train --lengths 131072
        begin 42 train-4096-131072 train --slots 4096 --lengths 131072
        for length in 32768 8192 2048; do begin 22 "train-512-$(printf %06d $length)" train --lengths $length; done
        begin 30 train-mamba train --against mamba --lengths 2048
        ;;
    prefill)
        for length in 131072 32768 8192 2048; do begin 16 "prefill-512-$(printf %06d $length)" prefill --lengths $length; done
        begin 16 prefill-4096-131072 prefill --slots 4096 --lengths 131072
        ;;
    decode)
        # After few positions with the smallest buffer; after many also with those that solve SRCD there, or nearly.
        for batch in 1 32; do begin 10 "decode-$batch-002048" decode --batches $batch --lengths 2048 --buffers 512; done
        begin 10 decode-1-131072 decode --batches 1 --lengths 131072 --buffers 512,2048,4096
        begin 90 decode-32-131072 decode --batches 32 --lengths 131072 --buffers 512,4096
        ;;
    kernels) begin 15 kernels kernels ;;
    breakdown)
        begin 22 breakdown-8192 breakdown --lengths 8192
        begin 42 breakdown-131072 breakdown --lengths 131072
        ;;
    scaling)
        for length in ${STAGES_AT:-2048 131072}; do
            for what in ${STAGES_OF:-train prefill}; do
                for stage in "all read everything" "few read everything" "all read a bounded buffer" \
                    "few read a bounded buffer" "few read a bounded buffer uncompiled"; do
                    needs=$((length > 65536 ? 45 : 25))
                    case $stage in *uncompiled) needs=$((2 * needs)) ;; esac
                    begin $needs "scaling-$what-$length-${stage// /-}" scaling --buffers 512 --lengths $length --what $what --stages "$stage"
                done
            done
        done
        begin 5 scaling-stores scaling --what "" --lengths 131072
        ;;
    *)
        echo "$part is not a part; see the head of this file" >&2
        exit 1
        ;;
    esac
    end "$part"
done
