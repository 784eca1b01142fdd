// SPDX-License-Identifier: Apache-2.0
// driver: the one path that every decorated call takes.
#include "driver/forwarding.hpp"

namespace vpmm::driver {

template <typename F>
CuResult ForwardingDriver::forward(Call call, F&& call_inner) {
  if (const std::optional<CuResult> answer = before(call)) return *answer;
  const bool timed = is_timed(call);
  const std::uint64_t start_ns = timed ? inner_.now_ns() : 0;
  const CuResult result = call_inner();
  after(call, result, timed ? inner_.now_ns() - start_ns : 0);
  return result;
}

#define VPMM_DRIVER_METHOD(name, parameters, arguments)                \
  CuResult ForwardingDriver::name parameters {                         \
    return forward(Call::name, [&] { return inner_.name arguments; }); \
  }
#include "driver/methods.def"
#undef VPMM_DRIVER_METHOD

}  // namespace vpmm::driver
