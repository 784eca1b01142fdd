// SPDX-License-Identifier: Apache-2.0
// base: sizes as text: what is accepted, what is refused, and what people read.
#include "base/quantity.hpp"

#include <gtest/gtest.h>

#include <utility>

namespace vpmm {
namespace {

TEST(ParseBytes, accepts_bare_numbers_and_every_unit) {
  const std::pair<const char*, Bytes> cases[] = {{"0", 0},
                                                 {"4096", 4096},
                                                 {"4096B", 4096},
                                                 {"3KiB", 3 * kKiB},
                                                 {"64MiB", 64 * kMiB},
                                                 {"5GiB", 5 * kGiB},
                                                 {"8TiB", 8 * kTiB},
                                                 {"3KB", 3'000},
                                                 {"3MB", 3'000'000},
                                                 {"3GB", 3'000'000'000},
                                                 {"3TB", 3'000'000'000'000},
                                                 {"18446744073709551615", ~Bytes{0}}};
  for (const auto& [text, bytes] : cases) {
    const auto parsed = parse_bytes(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(parsed.value(), bytes) << text;
  }
}

TEST(ParseBytes, accepts_a_blank_and_a_fraction_of_which_it_drops_what_is_less_than_a_byte) {
  const std::pair<const char*, Bytes> cases[] = {
      {"954 MiB", 954 * kMiB},
      {"700 bytes", 700},
      {"1 byte", 1},
      {"7 B", 7},
      {"1.5GiB", kGiB + kGiB / 2},
      {"1.46 GiB", 1'567'663'063},
      {"1.10KB", 1'100},
      {"0.29 KB", 290},
      {"0.0009KB", 0},
      {"0.00000000000000000000000000000001TiB", 0},
      {"0.99999999999999999999999999999999999TiB", kTiB - 1},
      {"16777215.9999999999999TiB", ~Bytes{0}}};
  for (const auto& [text, bytes] : cases) {
    const auto parsed = parse_bytes(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(parsed.value(), bytes) << text;
  }
}

TEST(ParseBytes, accepts_every_size_that_reports_print) {
  for (const Bytes bytes :
       {Bytes{0}, Bytes{1}, Bytes{700}, kKiB, kKiB + 1, 18 * kMiB, 1000 * kMiB,
        12 * kMiB + 300 * kKiB, kGiB + kGiB / 2, 139 * kGiB + 5, 8 * kTiB + kGiB}) {
    const auto parsed = parse_bytes(readable_bytes(bytes));
    ASSERT_TRUE(parsed.ok()) << readable_bytes(bytes);
    EXPECT_NEAR(static_cast<double>(parsed.value()), static_cast<double>(bytes),
                0.005 * static_cast<double>(bytes));
  }
}

TEST(ParseBytes, refuses_everything_else) {
  for (const char* text :
       {"",      " ",     "MiB",    " MiB",    "64M",      "64m",    "1k",     "2g",
        "-1",    "+1",    " 1",     "1 ",      "1  MiB",   "1\tMiB", "1MiB ",  " 1MiB",
        "64mib", "0x10",  "1MiBx",  "max",     "1e3",      "1.5",    "1.5B",   "1.5 bytes",
        ".5GiB", "1.GiB", "1. GiB", "1.-5GiB", "1.5.5GiB", "1,5GiB", "1 .5GiB"}) {
    const auto parsed = parse_bytes(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.error().code, ErrorCode::invalid_argument);
  }
}

TEST(ParseBytes, names_the_size_that_was_meant) {
  const std::pair<const char*, const char*> cases[] = {
      {"8G", "8GiB"}, {"64m", "64MiB"}, {"1.5 gib", "1.5 GiB"}, {"2kb", "2KB"}};
  for (const auto& [text, meant] : cases) {
    const std::string message = parse_bytes(text).error().message;
    EXPECT_TRUE(message.ends_with(std::string("; did you mean ") + meant + "?")) << message;
  }
  for (const char* text : {"", "1.5", "G", "lots", "1.5.5gib", "1.5.5GiB", "8 Gigs", "-8G"}) {
    const std::string message = parse_bytes(text).error().message;
    EXPECT_TRUE(message.ends_with("a whole number of bytes")) << message;
  }
}

TEST(ParseBytes, refuses_sizes_that_overflow) {
  for (const char* text :
       {"18446744073709551616", "16777216TiB", "16777216.5TiB", "18446744073709551615KiB",
        "18446744073709551615.5KB", "99999999999999999999999"}) {
    const auto parsed = parse_bytes(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_NE(parsed.error().message.find("larger than any size"), std::string::npos)
        << parsed.error().message;
  }
  EXPECT_TRUE(parse_bytes("16777215TiB").ok());
}

TEST(FormatBytes, gives_text_that_parses_back_to_the_same_size) {
  for (const Bytes bytes :
       {Bytes{0}, Bytes{1}, Bytes{1500}, kKiB, 3 * kMiB, 2 * kGiB, 8 * kTiB, kTiB + 1, ~Bytes{0}}) {
    const auto parsed = parse_bytes(format_bytes(bytes));
    ASSERT_TRUE(parsed.ok()) << format_bytes(bytes);
    EXPECT_EQ(parsed.value(), bytes);
  }
  EXPECT_EQ(format_bytes(3 * kMiB), "3MiB");
  EXPECT_EQ(format_bytes(1500), "1500B");
}

TEST(Counted, is_in_the_singular_for_one_alone) {
  EXPECT_EQ(counted(0, "free"), "0 frees");
  EXPECT_EQ(counted(1, "free"), "1 free");
  EXPECT_EQ(counted(2, "free"), "2 frees");
}

TEST(ReadableBytes, has_three_digits_and_the_largest_unit_that_is_not_more) {
  const std::pair<Bytes, const char*> cases[] = {{0, "0 bytes"},
                                                 {1, "1 byte"},
                                                 {1023, "1023 bytes"},
                                                 {kKiB, "1 KiB"},
                                                 {18 * kMiB, "18 MiB"},
                                                 {1000 * kMiB, "1000 MiB"},
                                                 {kGiB + kGiB / 2, "1.50 GiB"},
                                                 {12 * kMiB + 300 * kKiB, "12.3 MiB"},
                                                 {149'250'113'536, "139 GiB"},
                                                 {300 * kGiB + 1, "300 GiB"},
                                                 {~Bytes{0}, "16777216 TiB"}};
  for (const auto& [bytes, text] : cases) EXPECT_EQ(readable_bytes(bytes), text);
  EXPECT_EQ(readable_and_exact_bytes(18 * kMiB), "18 MiB (18874368 bytes)");
  EXPECT_EQ(readable_and_exact_bytes(700), "700 bytes");
}

TEST(ParseCount, accepts_digits_alone) {
  EXPECT_EQ(parse_count("18446744073709551615"), ~std::uint64_t{0});
  for (const char* text : {"", "-1", "+1", " 1", "1 ", "1.5", "1KiB", "18446744073709551616"})
    EXPECT_FALSE(parse_count(text).has_value()) << text;
}

}  // namespace
}  // namespace vpmm
