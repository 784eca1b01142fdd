// SPDX-License-Identifier: Apache-2.0
// cli: the command line: `vpmm VERB ...`, one file per verb.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "cli/help.hpp"
#include "cli/python_verbs.hpp"
#include "cli/terminal.hpp"
#include "cli/verbs.hpp"

namespace vpmm::cli {

int fail(std::string_view message) {
  const std::string line = "vpmm: " + printable(message) + "\n";
  std::fputs(line.c_str(), stderr);
  return kCouldNot;
}

void say_warning(std::string_view message) { fail("warning: " + std::string(message)); }

namespace {

constexpr char kVerbs[] =
    "completion, convert, emm-check, explain, fit, info, ps, replay, report, run, top or try";

std::string message_of(const CLI::ParseError& error) {
  std::string text = error.what();
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError))
    return "the following arguments are required: " + text.substr(0, text.find(" is required"));
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError))
    return "unrecognized arguments: " + text.substr(text.find(": ") + 2);
  return text;
}

// Prints usage and error in the form of argparse, which the verbs of the Python package have.
int refuse(const CLI::App& verb, const std::string& message) {
  const std::string name = verb.get_parent() == nullptr ? "vpmm" : "vpmm " + verb.get_name();
  std::string lines = Help().make_usage(&verb, name) + name + ": error: " + message + "\n";
  lines.erase(0, lines.find_first_not_of('\n'));
  std::fputs(lines.c_str(), stderr);
  return kCouldNot;
}

int run(int argc, char** argv) {
  int exit_code = kSuccess;
  CLI::App app{"One GPU memory pool for everything in a process", "vpmm"};
  app.formatter(std::make_shared<Help>());
  app.footer(
      "The Python package has more: completion, convert, explain, ps, report, run, top and "
      "try.");
  app.set_version_flag("--version", "vpmm " VPMM_VERSION);
  app.require_subcommand(0, 1);
  add_info(app, exit_code);
  add_replay(app, exit_code);
  add_fit(app, exit_code);
  add_emm_check(app, exit_code);
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty())
      return refuse(app, std::string("a command is missing: ") + kVerbs);
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> rest = app.remaining();
    if (app.get_subcommands().empty() && !rest.empty() && !rest.front().starts_with('-'))
      return refuse(app, "`" + rest.front() + "` is no command: " + kVerbs);
    if (dynamic_cast<const CLI::CallForHelp*>(&error) != nullptr) {
      std::fputs(wrapped(app.help(), columns_of_output()).c_str(), stdout);
      return kSuccess;
    }
    if (error.get_exit_code() == 0) return app.exit(error);  // the version
    return refuse(app.get_subcommands().empty() ? app : *app.get_subcommands().front(),
                  message_of(error));
  }
  return exit_code;
}

// The command line with a null at its end; `help` is `--help`, and `help VERB` is `VERB --help`.
std::vector<char*> words_of(int argc, char** argv) {
  static char option[] = "--help";
  std::vector<char*> words(argv, argv + argc);
  if (argc > 1 && words[1] == std::string_view("help")) {
    words.erase(words.begin() + 1);
    words.push_back(option);
  }
  words.push_back(nullptr);
  return words;
}

}  // namespace
}  // namespace vpmm::cli

int main(int argc, char** argv) {
  // A reader that has enough, as `| head`, ends the program without a word, also where Python
  // started it, which ignores the signal and hands that on.
  std::signal(SIGPIPE, SIG_DFL);
  try {
    std::vector<char*> words = vpmm::cli::words_of(argc, argv);
    if (argc > 1 && vpmm::cli::is_python_verb(words[1]))
      return vpmm::cli::run_in_python(words.data());
    const int exit_code = vpmm::cli::run(static_cast<int>(words.size()) - 1, words.data());
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      return vpmm::cli::fail("the output could not be written: " +
                             std::generic_category().message(errno));
    return exit_code;
  } catch (const std::exception& error) {
    return vpmm::cli::fail(error.what());
  }
}
