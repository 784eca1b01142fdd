#!/bin/sh
# A compiler launcher that takes an object of the library from $VPMM_BUILD_FOLDER, where it was built with other options,
# and compiles everything else, and the sources that $VPMM_COMPILED lists.
previous= output= depends= source=
for word; do
  case "$previous" in
    -o) output=$word ;;
    -MF) depends=$word ;;
    -c) source=$word ;;
  esac
  previous=$word
done
built=$VPMM_BUILD_FOLDER/CMakeFiles/${output##*/CMakeFiles/}
case "$output" in CMakeFiles/*) built= ;; esac # the project's own
case " $VPMM_COMPILED " in *" ${source#"$VPMM_SOURCE/"} "*) built= ;; esac
if [ -n "$built" ] && [ -e "$built" ]; then
  echo "$output:" >"$depends" && exec cp "$built" "$output"
fi
exec "$@"
