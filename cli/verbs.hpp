// SPDX-License-Identifier: Apache-2.0
// cli: what main.cpp knows of the verbs.
#pragma once

#include <CLI/CLI.hpp>
#include <string_view>

namespace vpmm::cli {

// Exit codes of every verb.
constexpr int kSuccess = 0;
constexpr int kFoundTrouble =
    1;  // the command did its work, and what it found is bad: corruptions, hazards
constexpr int kCouldNot = 2;  // wrong usage, a bad file or setting, no driver

// Each adds one subcommand whose callback does the work and stores the exit code. `exit_code`
// outlives the app.
void add_info(CLI::App& app, int& exit_code);
void add_fit(CLI::App& app, int& exit_code);
void add_replay(CLI::App& app, int& exit_code);
void add_emm_check(CLI::App& app, int& exit_code);

// One line on stderr: "vpmm: MESSAGE". Gives kCouldNot.
int fail(std::string_view message);
void say_warning(std::string_view message);

}  // namespace vpmm::cli
