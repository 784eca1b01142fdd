// SPDX-License-Identifier: Apache-2.0
// ipc tests: a process that answers `vpmm top`, and a client that asks it.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ipc/raw.hpp"

namespace vpmm::ipc_test {

class IpcTop : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::vector<std::string> on(const std::string& switched = "1") const {
    return {"VPMM_IPC_DIR=" + folder_, "VPMM_TOP=" + switched};
  }
  std::vector<std::string> names() const {
    return std::filesystem::exists(folder_) ? names_in(folder_) : std::vector<std::string>{};
  }
  // Empty: none.
  std::string socket_of(const Process& process) const {
    for (const std::string& name : names())
      if (name.starts_with("top-" + std::to_string(process.process()) + "-"))
        return folder_ + "/" + name;
    return {};
  }
  ipc::Channel connect(const Process& process) const {
    auto channel = ipc::connect_to(socket_of(process), soon());
    EXPECT_TRUE(channel.ok()) << channel.error().message;
    return channel ? std::move(channel.value()) : ipc::Channel();
  }
  // Empty: the process closed the connection.
  static std::string heard_from(const ipc::Channel& channel) {
    constexpr std::size_t kMostAnswer = std::size_t{1} << 20;
    std::string text(kMostAnswer, '\0');
    if (!channel.wait_to_receive(soon())) return "nothing came";
    const ssize_t got = recv(channel.get(), text.data(), text.size(), 0);
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  }
  nlohmann::json ask(const Process& process) const {
    const std::string text = heard_from(connect(process));
    nlohmann::json answer = nlohmann::json::parse(text, nullptr, false);
    EXPECT_FALSE(answer.is_discarded()) << text;
    return answer;
  }
  static std::vector<std::string> members_of(const nlohmann::json& object) {
    std::vector<std::string> found;
    for (const auto& [name, value] : object.items()) found.push_back(name);
    return found;
  }
  // Answers of the last moment serve again.
  nlohmann::json ask_anew(const Process& process) const {
    usleep(50'000);
    return ask(process);
  }

  const std::string folder_ = socket_folder_of_tests() + "/top";
};

}  // namespace vpmm::ipc_test
