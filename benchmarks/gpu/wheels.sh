#!/usr/bin/env bash
# Downloads the packages that a GPU machine without network may lack, for run.sh to install there.
#   benchmarks/gpu/wheels.sh [FOLDER]        default: benchmarks/gpu/.wheels, which git ignores
# For Python 3.12 on Linux x86-64. JAX, PyTorch, NumPy, optax, Flax, Equinox, Orbax and pytest have to be there already.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
folder="${1:-$here/.wheels}"
limit_mib=64
# Keras and Grain with what they need beyond the above, and the other optional packages of the tests.
packages=(keras namex optree grain array-record portpicker google-crc32c diastatic-malt astunparse gast termcolor tensorboardX)
platforms=()
for glibc in 39 38 37 36 35 34 31 28 27 24 17 12 5; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
platforms+=(--platform manylinux2014_x86_64 --platform manylinux2010_x86_64 --platform manylinux1_x86_64)

mkdir -p "$folder"
rm -f "$folder"/*.whl
"${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
  --python-version 3.12 --implementation cp "${platforms[@]}" --dest "$folder" "${packages[@]}"
total=$(du --bytes --total "$folder"/*.whl | tail -1 | cut -f1)
ls -l "$folder"/*.whl | awk '{ n = split($9, path, "/"); printf "%8.2f MiB  %s\n", $5 / 2^20, path[n] }'
awk -v total="$total" 'BEGIN { printf "%8.2f MiB in all\n", total / 2^20 }'
if (( total > limit_mib * 1024 * 1024 )); then
  echo "wheels.sh: more than $limit_mib MiB" >&2
  exit 1
fi
