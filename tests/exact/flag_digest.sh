#!/bin/sh
# usage: flag_digest.sh SOURCE_DIR WORK_DIR
# Compiles flag_digest.cpp with many compilers and flags, and fails unless all builds print the same
# digest. SOURCE_DIR is the root of the project. GXX and CLANGXX name other compilers.
set -u

source_dir=$1
work_dir=$2
gxx=${GXX:-g++}
clangxx=${CLANGXX:-clang++}
sets=0
failures=0
first=
mkdir -p "$work_dir" || exit 1

cpu_has() { grep -qw "$1" /proc/cpuinfo 2>/dev/null; }

# build COMPILER FLAGS...
build() {
  program=$work_dir/flag_digest_$sets
  if ! "$@" -std=c++20 -I "$source_dir/include" "$source_dir/tests/exact/flag_digest.cpp" \
      -o "$program"; then
    echo "does not compile: $*"
    failures=$((failures + 1))
    return
  fi
  digest=$("$program") || digest="exit status $?"
  echo "$digest  $*"
  sets=$((sets + 1))
  first=${first:-$digest}
  if [ "$digest" != "$first" ]; then
    failures=$((failures + 1))
  fi
}

if command -v "$gxx" >/dev/null; then
  build "$gxx" -O0
  build "$gxx" -O2
  build "$gxx" -Os -frounding-math -fsignaling-nans
  build "$gxx" -O3 -march=native
  build "$gxx" -O3 -ffast-math
  build "$gxx" -O3 -ffast-math -march=native
else
  echo "not tried: $gxx was not found"
fi
if command -v "$clangxx" >/dev/null; then
  build "$clangxx" -O0
  build "$clangxx" -O2
  build "$clangxx" -O1 -march=native
  build "$clangxx" -O2 -ffp-contract=fast -march=native
  build "$clangxx" -O3 -ffast-math
  build "$clangxx" -O3 -ffast-math -march=native
else
  echo "not tried: $clangxx was not found"
fi
for compiler in "$gxx" "$clangxx"; do
  command -v "$compiler" >/dev/null || continue
  for feature in avx avx512f; do
    if cpu_has "$feature"; then
      build "$compiler" -O2 "-m$feature" -ffast-math
    else
      echo "not tried: $compiler -m$feature, since this processor has none"
    fi
  done
done

if [ "$sets" -lt 6 ]; then
  echo "FAILED: $sets sets of flags, of at least 6"
  exit 1
fi
if [ "$failures" -ne 0 ]; then
  echo "FAILED: $failures of the builds differ from the first or failed"
  exit 1
fi
echo "$sets sets of flags, one digest"
