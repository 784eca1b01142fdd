// SPDX-License-Identifier: Apache-2.0
// tests: JSON that is written piece by piece is JSON, whatever the texts are.
#include "observe/json_text.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace vpmm::observe {
namespace {

TEST(JsonText, keeps_every_text_that_is_utf_8) {
  for (const std::string text : {"", "plain", "a \"quote\" and a \\", "line\nand\ttab\x01",
                                 "gr\xc3\xbc\xc3\x9f", "\xf0\x9f\x98\x80"})
    EXPECT_EQ(nlohmann::json::parse(json_quoted(text)).get<std::string>(), text);
}

TEST(JsonText, of_any_bytes_can_be_read) {
  std::mt19937 random(3);
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (auto size = random() % 8; size > 0; --size)
      text += static_cast<char>(random() % 3 == 0 ? random() : random() | 0x80);
    EXPECT_FALSE(nlohmann::json::parse(json_quoted(text), nullptr, false).is_discarded());
  }
}

TEST(JsonText, of_an_object_holds_its_members) {
  JsonObject object;
  EXPECT_EQ(object.text(), "{}");
  object.add("a", "1");
  object.add("b", json_quoted("x"));
  EXPECT_EQ(object.text(), R"({"a":1,"b":"x"})");
}

}  // namespace
}  // namespace vpmm::observe
