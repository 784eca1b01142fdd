// SPDX-License-Identifier: Apache-2.0
// ipc tests: tokens and handles that were damaged, forged or kept too long are refused, and break
// nothing.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>

#include "ipc/raw.hpp"

namespace vpmm::ipc_test::token_test {
namespace {

constexpr std::uint64_t kSeed = 6;
constexpr Bytes kSize = 3 * kMiB;

// In the test's own process: such a token never gets as far as another one.
vpmm_status open_here(const vpmm_ipc_handle& handle) {
  void* ptr = nullptr;
  const vpmm_status status = vpmm_ipc_open(&handle, -1, &ptr);
  EXPECT_EQ(ptr, nullptr);
  return status;
}

class IpcToken : public testing::Test {
 protected:
  void expect_unharmed() {
    const Address opened = importer_.open(shared_.handle);
    importer_.expect(opened, kSize, kSeed);
    importer_.close(opened);
  }

  Process exporter_;
  Process importer_;
  const Shared shared_ = exporter_.allocate_shared(kSize, kSeed);
};

TEST_F(IpcToken, with_any_bit_flipped_is_no_token) {
  for (std::size_t bit = 0; bit < 512; ++bit) {
    vpmm_ipc_handle damaged = shared_.handle;
    damaged.token[bit / 8] = static_cast<unsigned char>(damaged.token[bit / 8] ^ (1U << bit % 8));
    EXPECT_EQ(open_here(damaged), VPMM_ERROR_INVALID_ARGUMENT)
        << "bit " << bit << ": " << vpmm_last_error();
    vpmm_ipc_handle read{};
    EXPECT_EQ(vpmm_ipc_read_token(damaged.token, &read), VPMM_ERROR_INVALID_ARGUMENT) << bit;
    EXPECT_EQ(vpmm_ipc_export_end(&damaged), VPMM_ERROR_INVALID_ARGUMENT) << bit;
  }
  expect_unharmed();
}

TEST_F(IpcToken, that_is_none_is_told_from_one_that_is_newer_or_damaged) {
  const auto expect_said = [&](std::size_t byte, const std::string& words) {
    vpmm_ipc_handle damaged = shared_.handle;
    damaged.token[byte] ^= 2;
    EXPECT_EQ(open_here(damaged), VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(vpmm_last_error()).find(words), std::string::npos) << vpmm_last_error();
  };
  expect_said(0, "not an IPC token of vpmm");
  expect_said(4, "the IPC token is of version 3, and this library knows version 1");
  expect_said(6, "the IPC token is damaged");  // a field without a meaning
  expect_said(20, "the IPC token is damaged: its checksum is wrong");
}

ipc::TokenBytes bytes_of(const std::string& digits) {
  ipc::TokenBytes bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
  return bytes;
}

// Processes with other builds of the library read it.
TEST(IpcTokenBytes, are_the_same_in_every_build) {
  const std::string rest =
      "0102030405060708090a0b0c0d0e0f10181716151413121128272625242322213837363534333231"
      "4847464544434241";
  ipc::Token token;
  for (std::size_t i = 0; i < token.process.size(); ++i)
    token.process[i] = static_cast<std::uint8_t>(i + 1);
  token.allocation = 0x1112131415161718;
  token.generation = 0x2122232425262728;
  token.offset = 0x3132333435363738;
  token.size = 0x4142434445464748;
  const ipc::TokenBytes bytes = bytes_of("76706d6d01000000" + rest + "66d9d13d00000000");
  EXPECT_EQ(ipc::encode(token), bytes);
  const Result<ipc::Token> decoded = ipc::decode(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded.value(), token);
  EXPECT_FALSE(ipc::decode(bytes_of("76706d6d01000100" + rest + "97c0e0b900000000")).ok())
      << "with a right checksum, and something in the field without a meaning";
}

TEST_F(IpcToken, of_random_bytes_is_no_token) {
  const char* const given = std::getenv("VPMM_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  SCOPED_TRACE("replay: VPMM_SEED=" + std::to_string(seed) + " " + program_invocation_name +
               " --gtest_filter=IpcToken.of_random_bytes_is_no_token");
  std::mt19937_64 dice(seed);
  for (int i = 0; i < 10'000; ++i) {
    vpmm_ipc_handle handle = shared_.handle;
    // Some of the true bytes stay, so that each check is met.
    const std::size_t kept = dice() % sizeof handle.token;
    for (std::size_t at = kept; at < sizeof handle.token; ++at)
      handle.token[at] = static_cast<unsigned char>(dice());
    if (std::memcmp(handle.token, shared_.handle.token, sizeof handle.token) == 0)
      continue;  // the last byte by chance
    EXPECT_EQ(open_here(handle), VPMM_ERROR_INVALID_ARGUMENT) << vpmm_last_error();
  }
  expect_unharmed();
}

TEST_F(IpcToken, in_a_handle_that_does_not_fit_it_is_refused) {
  const auto changed = [&](auto&& change) {
    vpmm_ipc_handle handle = shared_.handle;
    change(handle);
    return importer_.try_to_open(handle);
  };
  expect_refused(changed([](auto& handle) { handle.kind = 0; }), VPMM_ERROR_INVALID_ARGUMENT,
                 "of kind 0");
  expect_refused(changed([](auto& handle) { handle.kind = 3; }), VPMM_ERROR_INVALID_ARGUMENT,
                 "of kind 3");
  const std::string size = std::to_string(kSize);
  expect_refused(changed([](auto& handle) { handle.bytes = 4096; }), VPMM_ERROR_INVALID_ARGUMENT,
                 "the IPC handle says 4096 bytes, and its token " + size);
  expect_refused(changed([](auto& handle) { handle.device_uuid[0] ^= 1; }), VPMM_ERROR_UNSUPPORTED,
                 "does not see");
  EXPECT_NE(changed([](auto& handle) { handle.kind = VPMM_IPC_LEGACY; }).status, VPMM_OK);
  EXPECT_NE(importer_.try_to_open(shared_.handle, 17).status, VPMM_OK) << "there is no such device";
  EXPECT_NE(importer_.try_to_open(shared_.handle, -2).status, VPMM_OK) << "there is no such device";
  expect_unharmed();
}

TEST_F(IpcToken, forged_with_a_right_checksum_reaches_nothing_but_the_allocation) {
  const ipc::Token token = parts_of(shared_.handle);
  const auto forged = [&](auto&& change) {
    ipc::Token made = token;
    change(made);
    return importer_.try_to_open(handle_of(made));
  };
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  const auto expect_outside = [&](auto&& change) {
    expect_refused(forged(change), VPMM_ERROR_INVALID_ARGUMENT, "not inside");
  };
  expect_outside([](auto& made) { made.size = 0; });
  expect_outside([](auto& made) { made.size = kMost; });
  expect_outside([](auto& made) { made.size += 2 * kMiB; });
  expect_outside([](auto& made) { made.offset = 4 * kMiB; });
  expect_outside([](auto& made) { made.offset = kMost; });
  expect_outside([](auto& made) { made.offset = kMost - kSize + 1; });
  expect_refused(forged([](auto& made) { ++made.generation; }), VPMM_ERROR_NOT_SHARED, "freed");
  expect_refused(forged([](auto& made) { made.generation = 0; }), VPMM_ERROR_NOT_SHARED, "freed");
  expect_refused(forged([](auto& made) { made.generation = kMost; }), VPMM_ERROR_NOT_SHARED,
                 "freed");
  expect_refused(forged([](auto& made) { made.process[3] ^= 1; }), VPMM_ERROR_NOT_SHARED, "gone");
  expect_unharmed();
  exporter_.free(shared_.address);
  exporter_.end(shared_.handle);
  expect_leases_to_end(exporter_);
}

// As by a socket that was given to another process: its allocations may have the same numbers.
TEST_F(IpcToken, of_another_process_opens_nothing_of_the_one_that_is_asked) {
  ipc::Channel channel = connect_by_hand(shared_.handle);
  ipc::Token token = parts_of(shared_.handle);
  token.process[3] ^= 1;
  send_by_hand(channel, open_message(handle_of(token), 1));
  const std::optional<ipc::Message> refused = next_from(channel);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->kind, ipc::MessageKind::refused);
  EXPECT_EQ(refused->number, 1U);
  EXPECT_EQ(refused->status, static_cast<std::uint32_t>(VPMM_ERROR_NOT_SHARED));
  EXPECT_NE(refused->said().find("this is another one"), std::string::npos) << refused->said();
  send_by_hand(channel, open_message(shared_.handle, 2));
  const std::optional<ipc::Message> granted = next_from(channel);
  ASSERT_TRUE(granted);
  EXPECT_EQ(granted->kind, ipc::MessageKind::granted);
  EXPECT_EQ(granted->number, 2U);
  expect_unharmed();
}

TEST_F(IpcToken, of_freed_memory_never_opens_again) {
  std::set<std::uint64_t> generations;
  vpmm_ipc_handle stale = shared_.handle;
  exporter_.free(shared_.address);
  exporter_.end(shared_.handle);
  for (int i = 0; i < 20; ++i) {
    expect_refused(importer_.try_to_open(stale), VPMM_ERROR_NOT_SHARED, "freed");
    const Shared next = exporter_.allocate_shared(kSize, kSeed);
    EXPECT_TRUE(generations.insert(parts_of(next.handle).generation).second);
    expect_refused(importer_.try_to_open(stale), VPMM_ERROR_NOT_SHARED, "freed");
    exporter_.free(next.address);
    exporter_.end(next.handle);
    stale = next.handle;
  }
}

TEST_F(IpcToken, of_one_process_differs_from_that_of_any_other) {
  const Shared of_another = importer_.allocate_shared(kSize, kSeed);
  EXPECT_NE(parts_of(of_another.handle).process, parts_of(shared_.handle).process);
}

TEST_F(IpcToken, sets_every_byte_of_the_handle) {
  const auto export_over = [&](std::uint64_t filler) {
    Parcel parcel;
    parcel.words = {shared_.address, filler};
    return exporter_
        .call(
            [](Parcel& asked) {
              std::memset(static_cast<void*>(&asked.handle), static_cast<int>(asked.words[1]),
                          sizeof asked.handle);
              asked.take(
                  vpmm_ipc_export(reinterpret_cast<void*>(asked.words[0]), kSize, &asked.handle));
            },
            parcel)
        .handle;
  };
  const vpmm_ipc_handle one = export_over(0x00);
  const vpmm_ipc_handle other = export_over(0xFF);
  EXPECT_EQ(std::memcmp(&one, &other, sizeof one), 0);
}

}  // namespace
}  // namespace vpmm::ipc_test::token_test
