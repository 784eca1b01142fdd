# SPDX-License-Identifier: Apache-2.0
# Makes comments of the headers ones of Doxygen, the first one left out, and keeps the number of lines.
1,/^#/b
s@^ *// NOLINT.*@@
s@^( *)/\* (-{3} .*)$@\1/*  \2@
s@^( *)// --- .*$@@
t
s@^(.*[;,{] *|.*[[:alnum:]] +)/\* (.*)$@\1/**< \2@
t
s@^( *)/\* @\1/** @
t
s@^( *)// @\1/// @
t
s@^(.*[;,}] +)// @\1///< @
