#!/usr/bin/env bash
# Correctness and speed on one GPU, within nine minutes: see README.md beside this.
#   benchmarks/gpu/run.sh [--only PIECE[,PIECE]] [--dry-run] [--out FOLDER] [--previous results.json]
# Uses what is installed, the repository, and the wheels that wheels.sh has put into benchmarks/gpu/.wheels; no network.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${PYTHON:-python3}"
if compgen -G "$here/.wheels/*.whl" >/dev/null && [[ " $* " != *" --dry-run "* ]]; then
  site="$(mktemp -d)"
  export GPU_BENCHMARK_SITE="$site" # removed by run.py
  if "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --disable-pip-version-check \
    --target "$site" "$here"/.wheels/*.whl; then
    export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
  else
    echo "run.sh: the wheels could not be installed; going on without them" >&2
  fi
fi
# The limit is also kept from outside, should the driver itself hang; a dry run may be slow.
seconds=540
if [[ " $* " == *" --dry-run "* ]]; then seconds=3000; fi
exec timeout --kill-after=5 "$seconds" "$python" "$here/run.py" "$@"
