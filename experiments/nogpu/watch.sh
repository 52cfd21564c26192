#!/usr/bin/env bash
# Runs a script on a GPU that does nothing; see README.md. Usage: watch.sh LOG SCRIPT [WORDS...] or
# watch.sh LOG -m MODULE [WORDS...]
# PYTHON: one with a CUDA build of PyTorch; what is compiled is kept in BUILD.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python}
build=${BUILD:-$here/../../build/nogpu}
log=$1
shift
mkdir -p "$build" "$(dirname "$log")"
packages=$("$python" -c 'import nvidia, os; print(list(nvidia.__path__)[0])')
cuda=${CUDA_HOME:-/usr/local/cuda}
for part in runtime driver; do
    library=$build/libnogpu.so
    test $part = driver && library=$build/libcuda.so.1
    if test "$here/$part.cpp" -nt "$library"; then
        g++ -std=c++17 -O1 -shared -fPIC -I"$cuda/include" -I"$packages/cu13/include" "$here/$part.cpp" -o "$library"
    fi
done
: >"$log"
export NOGPU_LOG=$log NOGPU_RUNTIME=$build/libnogpu.so
export LD_LIBRARY_PATH=$build TRITON_LIBCUDA_PATH=$build LD_PRELOAD=$build/libnogpu.so
export TRITON_CACHE_DIR=$build/triton TORCHINDUCTOR_CACHE_DIR=$build/inductor
export TORCHINDUCTOR_BENCHMARK_KERNEL=1 # compiled kernels know then how much they move
export PYTHONPATH=$here/../../src:$here${PYTHONPATH:+:$PYTHONPATH}
exec "$python" "$here/watch.py" "$@"
