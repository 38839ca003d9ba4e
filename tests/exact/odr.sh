#!/bin/sh
# usage: odr.sh SOURCE_DIR WORK_DIR
# Links two translation units that were compiled for different instruction sets, in both orders.
# Fails unless both give the same results, and no function that uses lanes has the same symbol in
# both: the linker would keep either one's code. CXX names the compiler. Exits with 77 (skipped) on
# processors without AVX2.
set -eu

source_dir=$1
work_dir=$2
cxx=${CXX:-c++}
mkdir -p "$work_dir"

if ! grep -qw avx2 /proc/cpuinfo 2>/dev/null; then
  echo "not tried: this processor has no AVX2"
  exit 77
fi

compile() {  # OBJECT SOURCE FLAGS...
  object=$work_dir/$1.o
  source=$source_dir/tests/exact/$2
  shift 2
  # -O0: every inline function is emitted, and so the linker's choice matters.
  "$cxx" -std=c++20 -O0 -I "$source_dir/include" "$@" -c "$source" -o "$object"
}
compile main odr_main.cpp
compile plain odr_unit.cpp -DODR_DIGEST=plain_digest
compile wide odr_unit.cpp -DODR_DIGEST=wide_digest -mavx2 -mfma

for unit in plain wide; do
  nm -C "$work_dir/$unit.o" | sed -n 's/^[0-9a-f]* [WVu] //p' | sort -u >"$work_dir/$unit.symbols"
done
used='Lanes|Mask|elementwise|rank_sum|node_values|native_cell|cell_value|isa_'
comm -12 "$work_dir/plain.symbols" "$work_dir/wide.symbols" >"$work_dir/common.symbols"
if grep -E "tessera::.*($used)" "$work_dir/common.symbols"; then
  echo "FAILED: these have one symbol for both instruction sets"
  exit 1
fi
for unit in plain wide; do  # the check above must not pass for want of symbols
  if ! grep -Eq "tessera::.*elementwise" "$work_dir/$unit.symbols"; then
    echo "FAILED: no lanes among the symbols of $unit.o"
    exit 1
  fi
done

for order in "plain wide" "wide plain"; do
  set -- $order
  "$cxx" "$work_dir/main.o" "$work_dir/$1.o" "$work_dir/$2.o" -o "$work_dir/odr"
  "$work_dir/odr"
done
