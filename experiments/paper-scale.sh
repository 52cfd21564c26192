#!/usr/bin/env bash
# SRCD at the paper's size: CRAM and the paper's other systems, how they do at other lengths, what their steps cost, and
# how long training took until the task was solved.
# Usage: paper-scale.sh [FOLDER [PART...]], parts: train measure lengths. Runs go to runs/paper-scale, and on from there
# when called again. STEPS and SEEDS are CRAM's, OTHER_STEPS and OTHER_SEEDS those of every other model of OTHERS, of
# which the Transformer must be one. With JOBS above 1 so many runs are trained side by side: times are then told by what
# a step takes alone, measured afterwards.
set -euo pipefail
torchcram=${TORCHCRAM:-torchcram}
device=${DEVICE:-cuda}
out=${1:-results}
shift || true
parts=${*:-train measure lengths}
runs=runs/paper-scale
steps=${STEPS:-2000}
seeds=${SEEDS:-0,1,2}
other_steps=${OTHER_STEPS:-$steps}
other_seeds=${OTHER_SEEDS:-0}
common=(--preset large --device "$device" --rows 128 --workers 1 --set bf16=true --set compile=true)
mkdir -p "$out/parts"

sweep() { # FILE WORDS...: a sweep in the background, once there is a place for it
    local file=$out/$1
    shift
    while test "$(jobs -rp | wc -l)" -ge "${JOBS:-1}"; do sleep 1; done
    $torchcram sweep srcd "${common[@]}" "$@" --json "$file" &
}

finals=() others=()
other() { # MODEL RATE [SETTING=VALUE]
    local model=$1 rate=$2 given=() folder=""
    case " ${OTHERS:-transformer jamba mamba seqboat} " in *" $model "*) ;; *) return ;; esac
    if test $# -gt 2; then
        given=(--vary "$3")
        folder="${3##*.}-"
    fi
    case $parts in *train*)
        sweep "parts/paper-$model.json" --out "$runs/$model" --model "$model" --set "steps=$other_steps" \
            --set "optimizer.rate=$rate" "${given[@]}" --vary "seed=$other_seeds"
        ;;
    esac
    finals+=("final=$out/parts/paper-$model.json")
    others+=("$runs/$model/${folder}seed=${other_seeds%%,*}")
}

own=()
for seed in ${seeds//,/ }; do
    case $parts in *train*)
        sweep "parts/paper-cram-$seed.json" --out "$runs/cram-$seed" --set "steps=$steps" --vary "seed=$seed"
        ;;
    esac
    own+=("$out/parts/paper-cram-$seed.json")
done
# Each at the rate that did best for it in baselines-srcd.json, SeqBoat with the window of those runs.
other transformer 1e-3
other jamba 5e-4
other mamba 1e-3
other seqboat 5e-4 model.attention.window=1024
case $parts in *train*) for job in $(jobs -p); do wait "$job"; done ;; esac

first="$runs/cram-${seeds%%,*}/seed=${seeds%%,*}"
transformer=${others[0]}
case $parts in *measure*)
    $torchcram join "${own[@]}" --out "$out/srcd-paper.json"
    $torchcram bench steps "$first" "${others[@]}" --compile --device "$device" --state-length 131072 \
        --json "$out/parts/bench-runs.json"
    # As many positions a step, in sequences four times as long: what reading everything costs there.
    $torchcram bench steps "$first" --set task.length=8192 --set batch=8 --compile --device "$device" \
        --json "$out/parts/bench-long.json"
    $torchcram join "$out/parts/bench-runs.json" "$out/parts/bench-long.json" --out "$out/bench-runs.json"
    $torchcram collect "final=$out/srcd-paper.json" "${finals[@]}" "cost=$out/parts/bench-runs.json" \
        --out "$out/baselines-srcd-paper.json" \
        --setting "The paper's size: width 512, 8 layers, 2048 positions, batches of 32 sequences, $steps steps for CRAM and $other_steps for others."
    $torchcram bench quality "$runs"/cram-*/seed=*/ "$transformer" --times "$out/parts/bench-runs.json" \
        --json "$out/bench-quality.json"
    ;;
esac

files=()
evaluate() { # NAME RUN LENGTH ROWS WORDS...
    local file="$out/parts/length-$1-$3.json" run=$2 length=$3 rows=$4
    shift 4
    files+=("$file")
    test -e "$file" && return
    while test "$(jobs -rp | wc -l)" -ge "${JOBS:-1}"; do sleep 1; done
    $torchcram evaluate "$run" --device "$device" --rows "$rows" --set "task.length=$length" "$@" --json "$file" &
}
case $parts in *lengths*)
    for pair in 2048:64 8192:16 32768:8 131072:4; do
        length=${pair%:*} rows=${pair#*:}
        evaluate transformer "$transformer" "$length" "$rows"
        for slots in 512 2048 2560 4096; do
            evaluate "cram-$slots" "$first" "$length" "$rows" --set "model.episodic.slots=$slots"
        done
    done
    for job in $(jobs -p); do wait "$job"; done
    $torchcram join "${files[@]}" --out "$out/srcd-length-paper.json"
    ;;
esac
