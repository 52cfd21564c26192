#!/usr/bin/env bash
# SRCD at the paper's size: CRAM and the paper's other systems, how they do at other lengths, what their steps cost, and
# how long training took until the task was solved.
# Usage: paper-scale.sh [FOLDER]; runs go to runs/paper-scale, and on from there when called again. STEPS and SEEDS are
# CRAM's, OTHER_STEPS and OTHER_SEEDS those of every other model.
set -euo pipefail
torchcram=${TORCHCRAM:-torchcram}
device=${DEVICE:-cuda}
out=${1:-results}
runs=runs/paper-scale
steps=${STEPS:-10000}
seeds=${SEEDS:-0,1,2}
other_steps=${OTHER_STEPS:-$steps}
other_seeds=${OTHER_SEEDS:-0}
common=(--preset large --device "$device" --rows 128 --workers 1 --set bf16=true --set compile=true)
mkdir -p "$out/parts"

$torchcram sweep srcd "${common[@]}" --out "$runs/cram" --set "steps=$steps" --vary "seed=$seeds" \
    --json "$out/srcd-paper.json"

# Each at the rate that did best for it in baselines-srcd.json, SeqBoat with the window of those runs.
parts=() others=()
other() { # MODEL RATE [SETTING=VALUE]
    local model=$1 rate=$2 given=() folder=""
    if test $# -gt 2; then
        given=(--vary "$3")
        folder="${3##*.}-"
    fi
    $torchcram sweep srcd "${common[@]}" --out "$runs/$model" --model "$model" --set "steps=$other_steps" \
        --set "optimizer.rate=$rate" "${given[@]}" --vary "seed=$other_seeds" --json "$out/parts/paper-$model.json"
    parts+=("final=$out/parts/paper-$model.json")
    others+=("$runs/$model/${folder}seed=${other_seeds%%,*}")
}
other transformer 1e-3
other jamba 5e-4
other mamba 1e-3
other seqboat 5e-4 model.attention.window=1024

first="$runs/cram/seed=${seeds%%,*}"
transformer=${others[0]}
$torchcram bench steps "$first" "${others[@]}" --compile --device "$device" --state-length 131072 \
    --json "$out/bench-runs.json"
$torchcram collect "final=$out/srcd-paper.json" "${parts[@]}" "cost=$out/bench-runs.json" \
    --out "$out/baselines-srcd-paper.json" \
    --setting "The paper's size: width 512, 8 layers, 2048 positions, batches of 32 sequences, $steps steps for CRAM and $other_steps for others."
$torchcram bench quality "$runs"/cram/seed=*/ "$transformer" --json "$out/bench-quality.json"

files=()
evaluate() { # NAME RUN LENGTH ROWS WORDS...
    local file="$out/parts/length-$1-$3.json" run=$2 length=$3 rows=$4
    shift 4
    test -e "$file" ||
        $torchcram evaluate "$run" --device "$device" --rows "$rows" --set "task.length=$length" "$@" --json "$file"
    files+=("$file")
}
for pair in 2048:64 8192:16 32768:8 131072:4; do
    length=${pair%:*} rows=${pair#*:}
    evaluate transformer "$transformer" "$length" "$rows"
    for slots in 512 2048 4096; do
        evaluate "cram-$slots" "$first" "$length" "$rows" --set "model.episodic.slots=$slots"
    done
done
$torchcram join "${files[@]}" --out "$out/srcd-length-paper.json"
