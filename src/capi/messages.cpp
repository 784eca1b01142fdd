// SPDX-License-Identifier: Apache-2.0
// capi: the destination of the log.
#include <string>

#include "capi/call.hpp"
#include "observe/log.hpp"

using namespace vpmm;
using namespace vpmm::capi;
using observe::LogLevel;

namespace {

static_assert(mirrors(LogLevel::error, VPMM_LOG_ERROR));
static_assert(mirrors(LogLevel::warning, VPMM_LOG_WARNING));
static_assert(mirrors(LogLevel::info, VPMM_LOG_INFO));
static_assert(mirrors(LogLevel::debug, VPMM_LOG_DEBUG));

}  // namespace

vpmm_status vpmm_set_log_callback(vpmm_log_callback callback, void* argument) {
  return guarded([&]() -> Result<void> {
    observe::LogSink sink;
    if (callback != nullptr)
      sink = [callback, argument](LogLevel level, std::string_view message) {
        callback(argument, static_cast<int>(level), std::string(message).c_str());
      };
    observe::set_log_sink(std::move(sink));
    return {};
  });
}
