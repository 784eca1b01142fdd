// SPDX-License-Identifier: Apache-2.0
// base: fmt's code, compiled once where it would be half of each other file.
#ifndef FMT_HEADER_ONLY  // else every file has it: CMakeLists.txt knows no such version of fmt

#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

// Templates that fmt's headers use without a definition.
template FMT_API thousands_sep_result<char> thousands_sep_impl(locale_ref);
template FMT_API char decimal_point_impl(locale_ref);
template FMT_API dragonbox::decimal_fp<float> dragonbox::to_decimal(float) noexcept;
template FMT_API dragonbox::decimal_fp<double> dragonbox::to_decimal(double) noexcept;
#if FMT_VERSION / 10000 == 10
template FMT_API void vformat_to<char>(buffer<char>&, string_view, vformat_args<char>::type,
                                       locale_ref);
#endif

}  // namespace detail
FMT_END_NAMESPACE

#endif
