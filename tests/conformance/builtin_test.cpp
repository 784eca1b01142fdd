// SPDX-License-Identifier: Apache-2.0
// conformance: the managers that come with the library pass every check.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "conformance/conformance.hpp"

namespace vpmm::conformance {
namespace {

// What a manager does not offer. Nothing else may be skipped.
struct Skip {
  std::string manager;
  std::string check;
};
const std::vector<Skip> kSkips{
    {"stream_ordered", "an_ipc_handle_tells_size_offset_and_device_also_of_a_view"},
    {"default", "memory_of_a_stream_is_given_back_in_its_order_or_dropped"},
    {"default", "memory_is_given_back_on_a_stream_once"},
};

bool is_skipped(const std::string& manager, const std::string& check) {
  return std::any_of(kSkips.begin(), kSkips.end(), [&](const Skip& skip) {
    return skip.manager == manager && skip.check == check;
  });
}

struct Case {
  const char* manager;
  Check check;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.manager << ": " << one.check.name; }

class Manager : public testing::TestWithParam<Case> {
 protected:
  // The shared pool keeps what it has, and the next test in this process may be another manager's.
  ~Manager() override { default_pool(0).trim(); }
};

TEST_P(Manager, conforms) {
  const Case& one = GetParam();
  const Finding finding = Suite(emm::builtin_plugin(one.manager), 0).run(one.check);
  const Verdict expected =
      is_skipped(one.manager, one.check.name) ? Verdict::skipped : Verdict::passed;
  EXPECT_STREQ(to_string(finding.verdict), to_string(expected)) << finding.text;
}

std::vector<Case> cases_of(const char* manager) {
  std::vector<Case> cases;
  for (const Check& check : all_checks()) cases.push_back({manager, check});
  return cases;
}
std::string name_of(const testing::TestParamInfo<Case>& info) { return info.param.check.name; }

INSTANTIATE_TEST_SUITE_P(vpmm, Manager, testing::ValuesIn(cases_of("vpmm")), name_of);
INSTANTIATE_TEST_SUITE_P(stream_ordered, Manager, testing::ValuesIn(cases_of("stream_ordered")),
                         name_of);
INSTANTIATE_TEST_SUITE_P(plain, Manager, testing::ValuesIn(cases_of("default")), name_of);

}  // namespace
}  // namespace vpmm::conformance
