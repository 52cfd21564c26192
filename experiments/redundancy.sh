#!/usr/bin/env bash
# How redundant attention is: in SmolLM2-135M, and in a GPT and a CRAM over their training on novels.
# Usage: redundancy.sh [FOLDER [TEXTS [PART...]]], parts: gpt cram smollm2. TEXTS holds novels-train.txt.xz,
# novels-heldout.txt.xz and wiki.test.raw. SMOLLM2 may name a GGUF file; by default `torchcram fetch` gets it. The parts
# can run side by side; whichever of the first two ends last makes redundancy-training.json of both.
set -euo pipefail
torchcram=${TORCHCRAM:-torchcram}
device=${DEVICE:-cuda}
out=${1:-results}
texts=${2:-texts}
shift $(($# < 2 ? $# : 2))
parts=${*:-gpt cram smollm2}
novels=$texts/novels-train.txt.xz
held_out=$texts/novels-heldout.txt.xz
runs=runs/redundancy
mkdir -p "$out"

over_training() { # NAME MODEL STEPS SAVED
    local file=$out/redundancy-$1.json
    test -e "$file" && return
    if test -e "$runs/$1/config.json"; then
        $torchcram train text --device "$device" --out "$runs/$1" --resume
    else
        $torchcram train text --model "$2" --preset large --device "$device" --out "$runs/$1" \
            --set model.layers=4 --set "task.train=$novels" --set "task.held_out=$held_out" --set optimizer.rate=1e-3 \
            --set bf16=true --set evaluate_every=250 --set evaluate_rows=64 --set save_every=1000 --set keep=1 \
            --set "steps=$3" --set "save_at=[$4]"
    fi
    $torchcram probe "$runs/$1" --at "$4,$3" --text "$novels" --judge "$held_out" \
        --train-tokens 500000 --eval-tokens 200000 --tested-tokens 100000 --batch 64 --tf32 --device "$device" \
        --out "$runs/probes-$1"
    $torchcram join "$runs/probes-$1/redundancy.json" --out "$file"
}

for part in $parts; do
    case $part in
    gpt) over_training gpt transformer 6000 0,100,300,1000,2500,4500 ;;
    cram) over_training cram cram 6000 0,100,300,1000,2500,4500,5250 ;;
    smollm2)
        test -e "$out/redundancy-smollm2.json" && continue
        $torchcram probe "${SMOLLM2:-smollm2}" --text "$novels" --judge "$texts/wiki.test.raw" --judge "$held_out" \
            --train-tokens 2000000 --eval-tokens 300000 --tested-tokens 61440 --batch 16 --tf32 --device "$device" \
            --out "$runs/smollm2"
        $torchcram join "$runs/smollm2/redundancy.json" --out "$out/redundancy-smollm2.json"
        ;;
    *)
        echo "$part is not a part; see the head of this file" >&2
        exit 1
        ;;
    esac
done
if test -e "$out/redundancy-gpt.json" && test -e "$out/redundancy-cram.json"; then
    $torchcram join "$out/redundancy-gpt.json" "$out/redundancy-cram.json" --out "$out/redundancy-training.json"
fi
