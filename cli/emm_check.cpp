// SPDX-License-Identifier: Apache-2.0
// cli: `vpmm emm-check`: a memory manager through the conformance suite.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/no_shortages.hpp"
#include "cli/options.hpp"
#include "cli/verbs.hpp"
#include "conformance/conformance.hpp"
#include "context/open_driver.hpp"
#include "settings/config.hpp"

namespace vpmm::cli {
namespace {

using conformance::Finding;
using conformance::Verdict;
using Json = nlohmann::ordered_json;

struct CheckArguments {
  std::string manager;
  std::optional<settings::DriverKind> driver;
  int device = 0;
  bool json = false;
};

// A built-in manager by its name, anything else from a file.
const vpmm_emm_plugin* find_plugin(const std::string& name) {
  const vpmm_emm_plugin* plugin = nullptr;
  return vpmm_emm_builtin_plugin(name.c_str(), &plugin) == VPMM_OK ? plugin
                                                                   : emm::load_plugin(name);
}

int count(const std::vector<Finding>& findings, Verdict verdict) {
  return static_cast<int>(std::count_if(findings.begin(), findings.end(), [&](const Finding& each) {
    return each.verdict == verdict;
  }));
}

void print_line(const Finding& finding) {
  const char* const verdict =
      finding.verdict == Verdict::failed ? "FAILED" : to_string(finding.verdict);
  fmt::print("{:<7}  {}{}{}\n", verdict, finding.check, finding.text.empty() ? "" : ": ",
             finding.text);
  std::fflush(stdout);  // a manager that crashes does not take along what was found before
}

void print_json(const char* name, const char* driver, int device,
                const std::vector<Finding>& findings) {
  Json json{{"manager", name}, {"driver", driver}, {"device", device}};
  for (const Verdict verdict : {Verdict::passed, Verdict::failed, Verdict::skipped})
    json[to_string(verdict)] = count(findings, verdict);
  json["checks"] = Json::array();
  for (const Finding& each : findings)
    json["checks"].push_back(
        {{"name", each.check}, {"result", to_string(each.verdict)}, {"text", each.text}});
  fmt::print("{}\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// Throws vpmm::error when nothing can be checked.
Result<int> check(const CheckArguments& options) {
  // The library reads the variable when CUDA is first needed; there is no other thread yet.
  if (options.driver) ::setenv("VPMM_DRIVER", settings::to_string(*options.driver), 1);
  VPMM_TRY_ASSIGN(const settings::Config config, settings::config_from_environment());
  VPMM_TRY_ASSIGN(driver::Driver* const driver, context::process_driver(config.driver));
  const vpmm_emm_plugin* const plugin = find_plugin(options.manager);
  const conformance::Suite suite(plugin, options.device);
  if (!options.json)
    fmt::print("memory manager {}, driver {}, device {}\n", plugin->name, driver->name(),
               options.device);
  std::vector<Finding> findings;
  for (const conformance::Check& each : conformance::all_checks()) {
    findings.push_back(suite.run(each));
    if (!options.json) print_line(findings.back());
  }
  const int failed = count(findings, Verdict::failed);
  if (options.json)
    print_json(plugin->name, driver->name(), options.device, findings);
  else
    fmt::print("{} passed, {} failed, {} skipped\n", count(findings, Verdict::passed), failed,
               count(findings, Verdict::skipped));
  return failed == 0 ? kSuccess : kFoundTrouble;
}

}  // namespace

void add_emm_check(CLI::App& app, int& exit_code) {
  CLI::App* verb =
      app.add_subcommand("emm-check", "Check a memory manager against the rules of vpmm/emm.h");
  auto options = std::make_shared<CheckArguments>();
  verb->add_option("MANAGER", options->manager,
                   "A library with a plugin, or one of: vpmm, stream_ordered, default")
      ->required();
  verb->add_option("--driver", options->driver,
                   "The driver (default: VPMM_DRIVER, else auto: a CUDA driver)")
      ->transform(driver_names())
      ->type_name("NAME");
  verb->add_option("--device", options->device, "Ordinal of the device")
      ->transform(number_up_to(std::numeric_limits<int>::max()))
      ->capture_default_str();
  verb->add_flag("--json", options->json, "One JSON object");
  verb->callback([options, &exit_code] {
    try {
      const Result<int> checked = check(*options);
      exit_code = checked ? checked.value() : fail(checked.error().message);
    } catch (const vpmm::error& error) {
      exit_code = fail(error.what());
    }
  });
}

}  // namespace vpmm::cli
