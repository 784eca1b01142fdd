// SPDX-License-Identifier: Apache-2.0
// base: one visitor of a variant, made of several lambdas.
#pragma once

namespace vpmm {

template <typename... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <typename... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

}  // namespace vpmm
