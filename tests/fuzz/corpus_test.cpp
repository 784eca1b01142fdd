// SPDX-License-Identifier: Apache-2.0
// fuzz tests: each target reads its corpus, and changed forms of it, from one seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "fuzz/targets.hpp"
#include "support/repository_path.hpp"

namespace vpmm::fuzz {
namespace {

std::vector<Contents> corpus_of(const std::string& target) {
  std::vector<std::filesystem::path> files;
  for (const auto& file :
       std::filesystem::directory_iterator(repository_path("tests/fuzz/corpus/" + target)))
    files.push_back(file.path());
  std::sort(files.begin(), files.end());
  std::vector<Contents> corpus;
  for (const auto& path : files) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

// Changes a few places: a bit, a byte that means much in formats, a piece out, a piece twice.
Contents changed(Contents bytes, std::mt19937_64& random) {
  constexpr std::uint8_t kTelling[] = {0, 1, 0x7f, 0x80, 0xff, '\n', ',', '-', '0', '9', '"', '%'};
  const std::uint64_t changes = 1 + random() % 4;
  for (std::uint64_t i = 0; i < changes && !bytes.empty(); ++i) {
    const auto at = static_cast<std::ptrdiff_t>(random() % bytes.size());
    const auto length = static_cast<std::ptrdiff_t>(
        std::min<std::uint64_t>(1 + random() % 16, bytes.size() - static_cast<std::size_t>(at)));
    switch (random() % 4) {
      case 0:
        bytes[static_cast<std::size_t>(at)] ^= static_cast<std::uint8_t>(1U << random() % 8);
        break;
      case 1: bytes[static_cast<std::size_t>(at)] = kTelling[random() % std::size(kTelling)]; break;
      case 2: bytes.erase(bytes.begin() + at, bytes.begin() + at + length); break;
      default: {
        const Contents piece(bytes.begin() + at, bytes.begin() + at + length);
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(random() % bytes.size()),
                     piece.begin(), piece.end());
        break;
      }
    }
  }
  return bytes;
}

class Corpus : public testing::TestWithParam<Target> {};

TEST_P(Corpus, is_read_as_it_is_and_changed) {
  constexpr int kForms = 4000;  // of each input
  const std::vector<Contents> corpus = corpus_of(GetParam().name);
  ASSERT_FALSE(corpus.empty());
  std::mt19937_64 random(51);
  for (const Contents& bytes : corpus) {
    GetParam().run(bytes);
    const auto run = GetParam().run;
    const bool is_long =
        run == read_exporter_messages || run == read_importer_messages || run == run_program;
    const int forms = is_long ? kForms / 40 : kForms;
    for (int form = 0; form < forms; ++form) GetParam().run(changed(bytes, random));
  }
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Corpus, testing::ValuesIn(targets()),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace vpmm::fuzz
