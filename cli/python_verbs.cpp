// SPDX-License-Identifier: Apache-2.0
// cli: looks whether python3 has the package, and runs it.
#include "cli/python_verbs.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "cli/verbs.hpp"

namespace vpmm::cli {
namespace {

constexpr std::array<std::string_view, 8> kPythonVerbs = {
    "completion", "convert", "explain", "ps", "report", "run", "top", "try"};

// Python looks for modules in the current folder first, with -c and -m: in a folder of downloads,
// json.py would run. The option against that (-P) came after 3.10. A place there stays empty no
// more, since `vpmm run` puts the program's folder in it.
constexpr std::string_view kNotFromHere =
    "import sys\nif sys.path[0] == '': sys.path[0] = sys.executable.rpartition('/')[0]\n";

// Finds the package; an import of it would load the library.
bool python_has_package() {
  char python[] = "python3";
  char option[] = "-c";
  std::string code(kNotFromHere);
  code += "import importlib.util; sys.exit(importlib.util.find_spec('vpmm') is None)";
  char* const argv[] = {python, option, code.data(), nullptr};
  posix_spawn_file_actions_t quiet;
  posix_spawn_file_actions_init(&quiet);
  posix_spawn_file_actions_addopen(&quiet, STDERR_FILENO, "/dev/null", 1, 0);
  pid_t child = 0;
  const int failed = posix_spawnp(&child, python, &quiet, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&quiet);
  int status = 1;
  return failed == 0 && waitpid(child, &status, 0) == child && status == 0;
}

}  // namespace

bool is_python_verb(std::string_view verb) {
  return std::find(kPythonVerbs.begin(), kPythonVerbs.end(), verb) != kPythonVerbs.end();
}

int run_in_python(char** argv) {
  if (!python_has_package())
    return fail(fmt::format(
        "`{}` is a command of the Python package vpmm, which python3 does not have here", argv[1]));
  char python[] = "python3";
  char option[] = "-c";
  std::string code(kNotFromHere);
  code += "import runpy; runpy.run_module('vpmm', run_name='__main__', alter_sys=True)";
  std::vector<char*> words = {python, option, code.data()};
  for (char** word = argv + 1; *word != nullptr; ++word) words.push_back(*word);
  words.push_back(nullptr);
  ::execvp(python, words.data());
  return fail("python3 could not be run");
}

}  // namespace vpmm::cli
