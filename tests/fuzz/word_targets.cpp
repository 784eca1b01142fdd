// SPDX-License-Identifier: Apache-2.0
// fuzz tests: values of settings, and tokens.
#include <algorithm>
#include <string>

#include "fuzz/targets.hpp"
#include "ipc/token.hpp"
#include "settings/config.hpp"

namespace vpmm::fuzz {

// "NAME=value". A value that is taken is told again as one that is taken, and means the same.
void read_setting(Input input) {
  const std::string_view text = text_of(input);
  const std::size_t at = text.find('=');
  if (at == std::string_view::npos) return;
  const std::string name(text.substr(0, at));
  settings::Config config;
  const settings::Config before = config;
  const Result<void> set = settings::set(config, name, text.substr(at + 1));
  if (!set) {
    require(!set.error().message.empty(), "an error says something");
    require(config == before, "a refused value changes nothing");
    return;
  }
  for (const settings::SettingInForce& setting : settings::list_settings(config)) {
    if (setting.name != name) continue;
    settings::Config again;
    const Result<void> told = settings::set(again, setting.name, setting.value);
    require(told.ok(), "a value in force is one that is taken");
    require(again == config, "a value in force means the same");
  }
}

void read_token(Input input) {
  ipc::TokenBytes bytes{};
  const std::size_t size = std::min(input.size(), sizeof bytes);
  std::copy_n(input.begin(), size, reinterpret_cast<std::uint8_t*>(&bytes));
  if (const Result<ipc::Token> token = ipc::decode(bytes))
    require(ipc::decode(ipc::encode(token.value())).value() == token.value(),
            "a token is the same after a way there and back");
  Taken taken(input);
  ipc::Token token;
  for (std::uint8_t& byte : token.process) byte = static_cast<std::uint8_t>(taken.number(1));
  token.allocation = taken.number(8);
  token.generation = taken.number(8);
  token.offset = taken.number(8);
  token.size = taken.number(8);
  const ipc::TokenBytes made = ipc::encode(token);
  const Result<ipc::Token> read = ipc::decode(made);
  require(!read || read.value() == token, "a token says what it was made of");
  for (std::size_t bit = taken.number(2) % 8; bit < 8 * sizeof made; bit += 61) {
    ipc::TokenBytes changed = made;
    reinterpret_cast<std::uint8_t*>(&changed)[bit / 8] ^=
        static_cast<std::uint8_t>(1U << (bit % 8));
    require(!ipc::decode(changed).ok(), "a token with another bit is refused");
  }
}

}  // namespace vpmm::fuzz
