#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A compiler launcher that takes an object from $VPMM_BUILT, the build folder of the same CMakeLists.txt, where it was built
# with other options; it compiles what that folder lacks, and the sources in $VPMM_SOURCE, or objects, that $VPMM_COMPILED
# lists.
previous= output= depends= source=
for word; do
  case "$previous" in
    -o) output=$word ;;
    -MF) depends=$word ;;
    -c) source=$word ;;
  esac
  previous=$word
done
target=${output##*CMakeFiles/}
# By name within its target: where the source lies outside the project, the path differs.
built=$(find "$VPMM_BUILT/CMakeFiles/${target%%/*}" "$VPMM_BUILT/python/CMakeFiles/${target%%/*}" -name "${output##*/}" 2>/dev/null)
case " $VPMM_COMPILED " in *" ${source#"$VPMM_SOURCE/"} "* | *" $target "*) built= ;; esac
if [ -n "$output" ] && [ -e "$built" ]; then
  echo "$output:" >"$depends" && exec cp "$built" "$output"
fi
exec "$@"
