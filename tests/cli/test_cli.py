# SPDX-License-Identifier: Apache-2.0
"""tests: the command line keeps its promises: verbs, options, exit codes, JSON keys, errors that name what is wrong.

VPMM_BUILD_FOLDER names the build whose bin/vpmm is run; the default is that of the dev preset.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VPMM = Path(os.environ.get("VPMM_BUILD_FOLDER", ROOT / "build/dev")).resolve() / "bin/vpmm"
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("VPMM_") and name != "COLUMNS"}

HEADER = "op,id,bytes,stream,time_us\n"
SMALL = HEADER + "a,1,3000000,0,0\na,2,100,1,50\nf,1,0,0,90\na,3,5000000,0,120\nf,2,0,1,130\n"
KEYS = [
    "trace",
    "driver",
    "allocator",
    "operations",
    "allocations",
    "failed_allocations",
    "recorded_failures",
    "first_failed_event",
    "first_failed_bytes",
    "peak_live_bytes",
    "peak_mapped_bytes",
    "driver_calls",
    "driver_time_us",
    "worst_allocate_us",
    "p99_allocate_us",
    "corruptions",
    "hazards",
    "mapped_chunks_peak",
    "plans",
    "seconds",
    "peak_rounded_bytes",
    "driver_time_first_half_us",
    "driver_time_second_half_us",
    "fit_bytes",
    "fit_ratio",
    "fit_less_64mib_ratio",
    "driver_calls_by_kind",
]
OK, TROUBLE, COULD_NOT = 0, 1, 2
SIMULATED = CLEAN | {"VPMM_DRIVER": "sim"}

# Without SHIFT it does as it should.
PLUGIN = r"""
#include "vpmm/emm.hpp"

class Plain : public vpmm::emm::HostOnlyMemoryManager {
 public:
  using HostOnlyMemoryManager::HostOnlyMemoryManager;

 private:
  vpmm::emm::Block do_allocate(std::size_t bytes) override {
    void* const whole = deallocations().attempt([&] { return driver().mem_alloc(bytes + SHIFT); });
    vpmm::emm::Block block{};
    block.pointer = static_cast<char*>(whole) + SHIFT;
    return block;
  }
  void do_release_device(const vpmm::emm::Block& block) noexcept override {
    deallocations().add(static_cast<char*>(block.pointer) - SHIFT, block.bytes, &vpmm::emm::Driver::mem_free);
  }
};
VPMM_EMM_EXPORT_PLUGIN(Plain, "plain");
"""


def vpmm(*words: object, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [str(VPMM), *(str(word) for word in words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=CLEAN | settings)


class CommandLine(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="vpmm-cli-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def trace(self, text: str = SMALL, name: str = "small.csv") -> Path:
        path = self.folder / name
        if name.endswith(".gz"):
            path.write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text)
        return path

    def replay_json(self, *words: object, **settings: str) -> list[dict[str, object]]:
        done = vpmm("replay", "--driver", "sim", "--json", *words, **settings)
        self.assertEqual(done.returncode, OK, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_version_is_that_of_the_project(self) -> None:
        done = vpmm("--version")
        self.assertEqual(done.returncode, OK)
        self.assertRegex(done.stdout, r"^vpmm \d+\.\d+\.\d+\n$")

    def test_help_names_the_verbs(self) -> None:
        done = vpmm("--help")
        self.assertEqual(done.returncode, OK)
        self.assertIn("info", done.stdout)
        self.assertIn("replay", done.stdout)

    def test_help_as_a_word_prints_what_the_option_does(self) -> None:
        for verb in ([], ["info"], ["replay"], ["fit"], ["emm-check"]):
            asked, option = vpmm("help", *verb), vpmm(*verb, "--help")
            self.assertEqual((asked.returncode, asked.stdout, asked.stderr), (OK, option.stdout, ""), verb)
        for words in (["help", "explode"], ["explode", "--help"]):
            done = vpmm(*words)
            self.assertEqual((done.returncode, done.stdout), (COULD_NOT, ""))
            self.assertIn("`explode` is no command", done.stderr)

    def test_without_a_verb_or_with_an_unknown_one_it_says_so(self) -> None:
        for words in ([], ["explode"], ["replay"], ["replay", "--driver", "abacus", self.trace()]):
            done = vpmm(*words)
            self.assertEqual(done.returncode, COULD_NOT, words)
            self.assertTrue(done.stderr, words)

    def test_an_unknown_verb_is_named(self) -> None:
        for words in (["explode"], ["explode", "--json"]):
            self.assertIn(
                "`explode` is no command: completion, convert, emm-check, explain, fit, info, ps, replay, report, "
                "run, top or try",
                vpmm(*words).stderr,
                words,
            )
        self.assertIn("explode", vpmm("explode", "info").stderr)
        self.assertIn("a command is missing: completion, convert, emm-check, explain, fit, info", vpmm().stderr)
        self.assertIn("--loud", vpmm("--loud").stderr)

    def test_a_wrong_use_is_said_as_the_verbs_in_python_say_it(self) -> None:
        for words, usage, error in (
            (["replay"], r"vpmm replay \[OPTIONS\] TRACE\S*", "the following arguments are required: TRACE"),
            (["fit"], r"vpmm fit \[OPTIONS\] TRACE\S*", "the following arguments are required: TRACE"),
            (["emm-check"], r"vpmm emm-check \[OPTIONS\] MANAGER", "the following arguments are required: MANAGER"),
            (["info", "--loud"], r"vpmm info \[OPTIONS\]", "unrecognized arguments: --loud"),
            (["info", "--driver"], r"vpmm info \[OPTIONS\]", "--driver: .*required NAME.*"),
            ([], r"vpmm \[OPTIONS\] \[VERB\]", "a command is missing: completion, .*"),
        ):
            done = vpmm(*words)
            self.assertEqual((done.returncode, done.stdout), (COULD_NOT, ""), words)
            prefix = " ".join(["vpmm", *words[:1]])
            self.assertRegex(done.stderr, rf"^usage: {usage}\n{prefix}: error: {error}\n$")

    def test_help_shows_the_names_that_are_accepted_and_numbers_behind_them_are_not(self) -> None:
        for verb in ("info", "replay", "emm-check"):
            text = vpmm(verb, "--help").stdout
            self.assertIn("--driver NAME:{auto,cuda,sim}", text)
            self.assertNotIn("->", text)
        self.assertIn("--allocator NAME:{vpmm,vpmm-page,cuda,cuda-async}", vpmm("replay", "--help").stdout)
        for words in (["info", "--driver", "2"], ["replay", self.trace(), "--allocator", "1"]):
            done = vpmm(*words)
            self.assertEqual(done.returncode, COULD_NOT, words)
            self.assertIn(f"`{words[-1]}` is not in {{", done.stderr)

    def test_numbers_that_would_wrap_are_refused(self) -> None:
        trace = self.trace()
        wrong = [
            ("--lag-us", "-1"),
            ("--lag-us", "3600000001"),
            ("--lag-us", "18446744073709551615"),
            ("--lag-us", "1.5"),
            ("--seed", "-1"),
            ("--seed", "18446744073709551616"),
        ]
        for option, value in wrong:
            done = vpmm("replay", trace, "--driver", "sim", f"{option}={value}")
            self.assertEqual(done.returncode, COULD_NOT, (option, value))
            self.assertIn(option, done.stderr)
            self.assertIn(f"`{value}` is not a whole number from 0 to ", done.stderr)
        self.replay_json(trace, "--lag-us", "0", "--seed", "18446744073709551615")

    def test_info_on_the_simulator_lists_device_capabilities_and_settings(self) -> None:
        done = vpmm("info", "--driver", "sim")
        self.assertEqual(done.returncode, OK, done.stderr)
        for text in ("driver sim", "device 0", "139.0 GiB", "2MiB", "VPMM_PAGE_SIZE", "VPMM_MAX_MAPPINGS"):
            self.assertIn(text, done.stdout)

    def test_info_as_json_holds_the_same(self) -> None:
        done = vpmm("info", "--driver", "sim", "--json", VPMM_MAX_MAPPINGS="1234")
        self.assertEqual(done.returncode, OK, done.stderr)
        info = json.loads(done.stdout)
        self.assertEqual(info["driver"], "sim")
        self.assertEqual(info["devices"][0]["granularity"], 2 << 20)
        self.assertIs(info["devices"][0]["capabilities"]["virtual_memory_management"], True)
        self.assertEqual(info["settings"]["VPMM_MAX_MAPPINGS"], "1234")

    def test_info_without_a_gpu_names_the_simulator_as_the_way_out(self) -> None:
        done = vpmm("info", "--driver", "cuda", CUDA_VISIBLE_DEVICES="")
        self.assertEqual(done.returncode, COULD_NOT)
        self.assertIn("simulator", done.stderr)

    def test_info_without_a_gpu_prints_the_settings_all_the_same(self) -> None:
        without = {"CUDA_VISIBLE_DEVICES": "", "VPMM_PAGES": "7"}
        text = vpmm("info", "--driver", "cuda", **without)
        self.assertRegex(text.stdout, r"settings asked for\n(.*\n)*  VPMM_PAGES +7 ")
        done = vpmm("info", "--driver", "cuda", "--json", **without)
        self.assertEqual(done.returncode, COULD_NOT)
        info = json.loads(done.stdout)
        self.assertIsNone(info["driver"])
        self.assertEqual(info["devices"], [])
        self.assertEqual(info["settings"]["VPMM_PAGES"], "7")

    def test_info_says_that_no_pool_would_accept_the_settings(self) -> None:
        for name, value in (
            ("VPMM_PAGE_SIZE", "3MiB"),
            ("VPMM_VA_SIZE", "1"),
            ("VPMM_CHUNK_MAX", "1"),
            ("VPMM_CHUNK_MAX", "3MB"),
        ):
            for more in ({}, {"VPMM_PAGE_SIZE": "max"}):
                done = vpmm("info", "--driver", "sim", **(more | {name: value}))
                self.assertEqual(done.returncode, COULD_NOT, name)
                self.assertIn(f"vpmm: {name}={value}: must be ", done.stderr)
                self.assertIn("a multiple of the device granularity (2MiB)", done.stderr)
                self.assertIn("device 0", done.stdout)
                self.assertNotIn("settings in force", done.stdout)

    def test_a_bad_setting_is_an_error_that_names_it(self) -> None:
        for words in (["info"], ["replay", self.trace()]):
            done = vpmm(*words, "--driver", "sim", VPMM_MAX_MAPPINGS="lots")
            self.assertEqual(done.returncode, COULD_NOT)
            self.assertIn("VPMM_MAX_MAPPINGS", done.stderr)
            self.assertIn("lots", done.stderr)

    def test_info_lists_every_variable_with_its_value_and_where_that_came_from(self) -> None:
        done = vpmm("info", "--driver", "sim", VPMM_IPC_TIMEOUT="7")
        self.assertEqual(done.returncode, OK, done.stderr)
        for row in (
            r"VPMM_IPC_TIMEOUT +7 +environment",
            r"VPMM_MEMORY_MANAGER +vpmm +default",
            r"VPMM_DRIVER +sim +--driver",
        ):
            self.assertRegex(done.stdout, row)
        origins = re.findall(r"  (default|environment|--driver)  ", done.stdout.partition("settings in force")[2])
        self.assertEqual(origins[:2], ["--driver", "environment"])
        self.assertEqual(set(origins[2:]), {"default"})
        info = json.loads(vpmm("info", "--driver", "sim", "--json", VPMM_IPC_TIMEOUT="7").stdout)
        self.assertEqual(
            (info["settings"]["VPMM_IPC_TIMEOUT"], info["origins"]["VPMM_IPC_TIMEOUT"]), ("7", "environment")
        )
        self.assertEqual((info["problems"], info["misspelt"]), ([], []))

    def test_info_prints_all_the_same_when_variables_hold_what_is_not_allowed(self) -> None:
        bad = {
            "VPMM_IPC_TIMEOUT": "0",
            "VPMM_MAX_PENDING_DEALLOCS_RATIO": "2",
            "VPMM_PAGES": "lots",
            "VPMM_USE": "torch,numby",
            "VPMM_TORCH": "enabled",
            "VPMM_CUPY": "on,off",
            "VPMM_VLLM": "require",
            "VPMM_CAPACITY": "64M",
            "VPMM_RECORD_LIMIT": "1gb",
        }
        done = vpmm("info", "--driver", "sim", **bad)
        self.assertEqual(done.returncode, COULD_NOT)
        for name, value in bad.items():
            self.assertIn(f"vpmm: {name}={value}: must be ", done.stderr)
            self.assertRegex(done.stdout, rf"{name} +{value} +environment")
        self.assertRegex(done.stderr, r"VPMM_CAPACITY=64M: .*; did you mean 64MiB\?\n")
        self.assertRegex(done.stderr, r"VPMM_RECORD_LIMIT=1gb: .*; did you mean 1GB\?\n")
        self.assertIn("device 0", done.stdout)
        self.assertEqual(len(json.loads(vpmm("info", "--driver", "sim", "--json", **bad).stdout)["problems"]), len(bad))

    def test_libraries_are_named_in_any_case_with_blanks_between_them(self) -> None:
        done = vpmm("info", "--driver", "sim", VPMM_USE="Torch, numba,", VPMM_TORCH=" Require", VPMM_RMM="ON")
        self.assertEqual((done.returncode, done.stderr), (OK, ""))

    def test_info_warns_of_a_variable_that_is_none_and_names_the_one_that_was_meant(self) -> None:
        sentence = "VPMM_PAGE_SZE is not a setting; did you mean VPMM_PAGE_SIZE?"
        done = vpmm("info", "--driver", "sim", VPMM_PAGE_SZE="4MiB")
        self.assertEqual((done.returncode, done.stderr), (OK, f"vpmm: warning: {sentence}\n"))
        info = json.loads(vpmm("info", "--driver", "sim", "--json", VPMM_PAGE_SZE="4MiB").stdout)
        self.assertEqual(info["misspelt"], [sentence])

    def test_info_warns_of_stacks_that_no_file_is_there_for(self) -> None:
        done = vpmm("info", "--driver", "sim", VPMM_RECORD_STACKS="python")
        sentence = "VPMM_RECORD_STACKS has no effect without VPMM_RECORD, the path of a file"
        self.assertEqual((done.returncode, done.stderr), (OK, f"vpmm: warning: {sentence}\n"))

    def test_info_that_cannot_be_written_is_an_error(self) -> None:
        for words in ([], ["--json"]):
            with open("/dev/full", "w") as full:
                command = [str(VPMM), "info", "--driver", "sim", *words]
                done = subprocess.run(
                    command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False, env=CLEAN
                )
            self.assertEqual(done.returncode, COULD_NOT)
            self.assertIn("No space left on device", done.stderr)

    def test_replay_prints_one_object_per_trace_and_allocator_with_exactly_these_keys(self) -> None:
        traces = [self.trace(), self.trace(name="packed.csv.gz")]
        allocators = ["vpmm", "vpmm-page", "cuda", "cuda-async"]
        results = self.replay_json(*traces, *(word for name in allocators for word in ("--allocator", name)))
        self.assertEqual([list(result) for result in results], [KEYS] * 8)
        expected = [(trace.name, name) for trace in traces for name in allocators]
        self.assertEqual([(result["trace"], result["allocator"]) for result in results], expected)
        for result in results:
            self.assertEqual(result["driver"], "sim")
            self.assertEqual(result["operations"], 5)
            self.assertEqual(result["allocations"], 3)
            self.assertEqual(result["peak_live_bytes"], 5_000_100)
            self.assertEqual(result["peak_rounded_bytes"], (6 << 20) + 256)
            self.assertIsNone(result["fit_bytes"])
            for none in ("failed_allocations", "corruptions", "hazards"):
                self.assertEqual(result[none], 0)

    def test_replay_uses_the_pool_when_no_allocator_is_named(self) -> None:
        self.assertEqual([result["allocator"] for result in self.replay_json(self.trace())], ["vpmm"])

    def test_an_allocator_does_not_swallow_the_trace_behind_it(self) -> None:
        self.assertEqual(len(self.replay_json("--allocator", "cuda", self.trace())), 1)

    def test_replay_gives_the_same_figures_in_every_run(self) -> None:
        trace = self.trace()
        first, second = self.replay_json(trace), self.replay_json(trace)
        for result in (*first, *second):
            del result["seconds"]
        self.assertEqual(first, second)

    def test_capacity_is_that_of_the_simulated_gpu(self) -> None:
        result = self.replay_json(self.trace(), "--capacity", "6MiB", "--allocator", "cuda")[0]
        self.assertEqual(result["failed_allocations"], 1)
        done = vpmm("replay", self.trace(), "--driver", "sim", "--capacity", "4 bananas")
        self.assertEqual(done.returncode, COULD_NOT)
        self.assertIn("bananas", done.stderr)

    def test_fit_is_the_smallest_gpu_on_which_nothing_fails(self) -> None:
        allocators = ["--allocator", "vpmm", "--allocator", "cuda"]
        for result in self.replay_json(self.trace(), "--fit", *allocators):
            fit = result["fit_bytes"]
            self.assertGreaterEqual(fit, result["peak_rounded_bytes"])
            self.assertEqual(result["fit_ratio"], fit / result["peak_rounded_bytes"])
            for capacity, failed in ((fit, 0), (fit - (2 << 20), 1)):
                words = ["--allocator", result["allocator"], "--capacity", f"{capacity}B"]
                self.assertEqual(self.replay_json(self.trace(), *words)[0]["failed_allocations"], failed)

    def test_unchecked_looks_for_no_hazards_and_changes_no_other_figure(self) -> None:
        checked, unchecked = (self.replay_json(self.trace(), *words)[0] for words in ([], ["--unchecked"]))
        self.assertEqual((checked["hazards"], unchecked["hazards"]), (0, None))
        for each in (checked, unchecked):
            del each["hazards"], each["seconds"]
        self.assertEqual(unchecked, checked)

    def test_fit_shows_a_table_of_its_own_and_no_warning(self) -> None:
        done = vpmm("replay", self.trace(), "--driver", "sim", "--fit")
        self.assertEqual((done.returncode, done.stderr), (OK, ""))
        self.assertIn("smallest GPU  over live\n", done.stdout)
        self.assertEqual(sum(line.startswith("small.csv ") for line in done.stdout.splitlines()), 2)

    def test_fit_is_none_when_the_trace_does_not_fit_the_capacity(self) -> None:
        done = vpmm("replay", self.trace(), "--driver", "sim", "--fit", "--capacity", "4MiB")
        self.assertEqual(done.returncode, OK, done.stderr)
        self.assertIn("none", done.stdout)

    def test_calls_show_a_table_of_their_own_and_are_always_in_the_json(self) -> None:
        done = vpmm("replay", self.trace(), "--driver", "sim", "--calls")
        self.assertEqual((done.returncode, done.stderr), (OK, ""))
        rows = [line.split() for line in done.stdout.splitlines() if line.startswith("small.csv ")]
        table = {row[2]: row for row in rows if len(row) == 12}
        calls = self.replay_json(self.trace())[0]["driver_calls_by_kind"]
        self.assertEqual(list(table), list(calls))
        self.assertEqual(table["mem_map"][3], str(calls["mem_map"]["count"]))
        self.assertNotIn("MiB a call", vpmm("replay", self.trace(), "--driver", "sim").stdout)

    def test_costs_are_those_of_a_busy_process_unless_told_otherwise(self) -> None:
        default, busy, idle = (
            self.replay_json(self.trace(), *costs)[0]["driver_time_us"]
            for costs in ([], ["--costs", "busy"], ["--costs", "idle"])
        )
        self.assertEqual(default, busy)
        self.assertLess(idle, busy)
        done = vpmm("replay", self.trace(), "--costs", "1")
        self.assertEqual(done.returncode, COULD_NOT)
        self.assertIn("`1` is not in {busy,idle}", done.stderr)

    def test_the_table_leaves_out_the_footprint_of_the_simulated_async_pool(self) -> None:
        done = vpmm("replay", self.trace(), "--driver", "sim", "--allocator", "vpmm", "--allocator", "cuda-async")
        self.assertEqual(done.returncode, OK, done.stderr)
        rows = {line.split()[2]: line for line in done.stdout.splitlines() if line.startswith("small.csv ")}
        self.assertEqual(rows["vpmm"].count("MiB"), 3)
        self.assertEqual(rows["cuda-async"].count("MiB"), 2)

    def test_failed_allocations_are_counted_in_the_table_and_their_warnings_are_few(self) -> None:
        trace = self.trace(HEADER + "".join(f"a,{i},3000000,0,{i}\n" for i in range(500)))
        done = vpmm("replay", trace, "--driver", "sim", "--capacity", "5MiB")
        self.assertEqual(done.returncode, OK, "it is what was asked for, no error")
        self.assertEqual(done.stderr.count("out of device memory"), 3)
        self.assertIn("vpmm: 496 more warnings like it were left out\n", done.stderr)
        row = next(line for line in done.stdout.splitlines() if line.startswith("small.csv "))
        self.assertIn("499", row.split())
        self.assertIn("had no memory for 499 requests, the first of 2.86 MiB at event 1;", done.stdout)

    def test_an_error_in_a_later_run_keeps_what_is_done(self) -> None:
        allocators = ["--allocator", "vpmm", "--allocator", "vpmm-page"]
        done = vpmm("replay", self.trace(), "--driver", "sim", *allocators, VPMM_PAGE_SIZE="max")
        self.assertEqual(done.returncode, COULD_NOT)
        self.assertIn("small.csv  sim     vpmm ", done.stdout)
        self.assertEqual(
            done.stderr,
            "vpmm: small.csv through vpmm-page: VPMM_PAGE_SIZE=max switches off the pool that would have one chunk per "
            "page\n",
        )

    def test_a_recording_that_was_cut_is_replayed_with_a_warning(self) -> None:
        path = self.trace(SMALL, "cut.csv.gz")
        path.write_bytes(path.read_bytes()[:-4])
        done = vpmm("replay", path, "--driver", "sim", "--json")
        self.assertEqual(done.returncode, OK)
        self.assertEqual(json.loads(done.stdout)["operations"], 5)
        self.assertIn(f"vpmm: warning: {path}: the file is cut short", done.stderr)

    def test_no_progress_bar_is_drawn_into_a_pipe(self) -> None:
        self.assertEqual(vpmm("replay", self.trace(), "--driver", "sim").stderr, "")

    def test_a_table_wider_than_the_terminal_becomes_a_paragraph_for_each_row(self) -> None:
        words = ["replay", self.trace(), "--driver", "sim", "--allocator", "vpmm", "--allocator", "cuda", "--fit"]
        wide = vpmm(*words)
        for columns, paragraphs in ((50, 2), (80, 1)):  # the table of fits needs 57
            done = vpmm(*words, COLUMNS=str(columns))
            self.assertEqual((done.returncode, done.stderr), (OK, ""))
            self.assertLessEqual(max(map(len, done.stdout.splitlines())), columns)
            self.assertEqual(done.stdout.count("small.csv  sim  cuda\n"), paragraphs)
            self.assertRegex(done.stdout, r"\n  peak live 4\.77 MiB, rounded 6\.00 MiB,")
        self.assertEqual(vpmm(*words, COLUMNS="500").stdout, wide.stdout)

    def test_info_fits_the_terminal_and_a_wide_one_has_its_table(self) -> None:
        wide = vpmm("info", "--driver", "sim").stdout
        self.assertEqual(vpmm("info", "--driver", "sim", COLUMNS="1000").stdout, wide)  # a path may be long
        for columns in (50, 80):
            narrow = vpmm("info", "--driver", "sim", COLUMNS=str(columns)).stdout
            self.assertLessEqual(max(map(len, narrow.splitlines())), columns)
            self.assertEqual(narrow.split(), wide.split())

    def test_help_fits_the_terminal(self) -> None:
        for words in (["--help"], ["info", "--help"], ["replay", "--help"], ["fit", "--help"], ["emm-check", "--help"]):
            wide = vpmm(*words).stdout
            for columns in (40, 50, 80):
                narrow = vpmm(*words, COLUMNS=str(columns))
                self.assertEqual((narrow.returncode, narrow.stderr), (OK, ""))
                self.assertLessEqual(max(map(len, narrow.stdout.splitlines())), columns, narrow.stdout)
                self.assertEqual(narrow.stdout.split(), wide.split())

    def test_sizes_are_in_the_unit_that_fits(self) -> None:
        done = vpmm("replay", self.trace(), "--driver", "sim")
        self.assertRegex(done.stdout, r" 4\.77 MiB +6\.00 MiB ")
        tiny = vpmm("replay", self.trace(HEADER + "a,1,1000,0,0\n"), "--driver", "sim")
        self.assertRegex(tiny.stdout, r" 1000 B +1\.00 KiB ")

    def test_ctrl_c_keeps_what_is_done_and_says_so(self) -> None:
        big = self.trace(HEADER + "".join(f"a,{i},300,0,{i}\nf,{i},0,0,{i}\n" for i in range(400_000)), "big.csv")
        for verb in (["replay", "--json"], ["fit", "--prefer", "balanced", "--json"]):
            command = [str(VPMM), *verb, str(self.trace()), str(big)]
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=SIMULATED
            ) as run:
                assert run.stdout is not None
                first = json.loads(run.stdout.readline())
                run.send_signal(signal.SIGINT)
                rest, errors = run.communicate(timeout=60)
            self.assertEqual((first["trace"], rest), ("small.csv", ""), verb)
            self.assertEqual(run.returncode, 130, errors)
            self.assertIn("interrupted\n", errors)

    def test_output_that_cannot_be_written_is_an_error(self) -> None:
        for words in (["info"], ["info", "--json"], ["replay", self.trace()], ["fit", self.trace()]):
            with open("/dev/full", "w") as full:
                command = [str(VPMM), *map(str, words)]
                done = subprocess.run(
                    command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=SIMULATED
                )
            self.assertEqual(done.returncode, COULD_NOT, words)
            self.assertRegex(done.stderr, r"^(vpmm: .*: No space left on device\n)+$")

    def test_a_reader_that_has_enough_ends_it_without_a_word(self) -> None:
        for words in (["--help"], ["info"], ["info", "--json"], ["replay", self.trace()], ["fit", self.trace()]):
            for are_restored in (True, False):  # not restored: SIGPIPE is ignored, as where a Python program started it
                reading, writing = os.pipe()
                os.close(reading)
                done = subprocess.run(
                    [str(VPMM), *map(str, words)],
                    stdout=writing,
                    stderr=subprocess.PIPE,
                    text=True,
                    check=False,
                    env=SIMULATED,
                    restore_signals=are_restored,
                )
                os.close(writing)
                self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, ""), words)

    def test_fit_finds_the_smallest_gpu_for_each_setting(self) -> None:
        done = vpmm("fit", self.trace(), "--json")
        self.assertEqual((done.returncode, done.stderr), (OK, ""))
        results = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([each["setting"] for each in results], ["footprint", "balanced", "latency", "page"])
        for each in results:
            self.assertGreaterEqual(each["fit_bytes"], each["peak_rounded_bytes"])
            fit, failed = each["fit_bytes"], []
            prefer = {} if each["setting"] == "page" else {"VPMM_PREFER": each["setting"]}
            allocator = ["--allocator", "vpmm-page"] if each["setting"] == "page" else []
            for capacity in (fit, fit - (2 << 20)):
                replayed = self.replay_json(self.trace(), "--capacity", f"{capacity}B", *allocator, **prefer)
                failed.append(replayed[0]["failed_allocations"])
            self.assertEqual(failed, [0, 1], each["setting"])

    def test_fit_takes_settings_by_name_and_prints_a_table(self) -> None:
        done = vpmm("fit", self.trace(), "--prefer", "page", "--prefer", "footprint")
        self.assertEqual((done.returncode, done.stderr), (OK, ""))
        rows = [line.split() for line in done.stdout.splitlines()[1:]]
        self.assertEqual([row[2] for row in rows], ["page", "footprint"])
        self.assertIn(
            "`fast` is not in {footprint,balanced,latency,page}", vpmm("fit", self.trace(), "--prefer", "fast").stderr
        )

    def test_verbs_of_the_python_package_are_handed_on_to_it(self) -> None:
        package = self.folder / "vpmm"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(7)\n")
        done = vpmm("try", "a file", "--json", PYTHONPATH=str(self.folder))
        self.assertEqual((done.returncode, done.stdout), (7, "['try', 'a file', '--json']\n"))
        done = vpmm("help", "try", PYTHONPATH=str(self.folder))
        self.assertEqual((done.returncode, done.stdout), (7, "['try', '--help']\n"))
        for verb in ("completion", "convert", "explain", "ps", "report", "run", "top", "try"):
            done = vpmm(verb, "a file", PYTHONPATH=str(self.folder))
            self.assertEqual((done.returncode, done.stdout), (7, f"['{verb}', 'a file']\n"))
            self.assertIn(f" {verb}", vpmm("--help", COLUMNS="200").stdout.splitlines()[-1])
            done = vpmm(verb, PYTHONPATH="", PYTHONNOUSERSITE="1")
            if "python3 does not have" not in done.stderr:
                self.skipTest("python3 has the package vpmm")
            self.assertEqual(done.returncode, COULD_NOT)
            self.assertIn(f"vpmm: `{verb}` is a command of the Python package vpmm", done.stderr)

    def test_verbs_of_the_python_package_take_no_module_from_the_current_folder(self) -> None:
        package, here = self.folder / "there" / "vpmm", self.folder / "here"
        for folder in (package, here / "vpmm"):
            folder.mkdir(parents=True)
            (folder / "__init__.py").touch()
        (package / "__main__.py").write_text("import json, shlex\nprint('as it should')\n")
        for trap in ("json.py", "shlex.py", "runpy.py", "vpmm/__main__.py", "importlib.py"):
            (here / trap).write_text("print('a trap')\n")
        command, settings = [str(VPMM), "ps"], CLEAN | {"PYTHONPATH": str(package.parent)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=settings, cwd=here)
        self.assertEqual((done.stdout, done.stderr), ("as it should\n", ""))
        settings = CLEAN | {"PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=settings, cwd=here)
        self.assertNotIn("a trap", done.stdout)

    def test_a_file_gives_no_commands_to_the_terminal(self) -> None:
        commands = "\x1b]0;title\x07\x9b2J\x7f"
        for line in (f"a,{commands},1,0,0\n", f"{commands},1,1,0,0\n"):
            for verb in ("replay", "fit"):
                done = vpmm(verb, self.trace(HEADER + line, f"bad{commands}.csv"), VPMM_DRIVER="sim")
                self.assertEqual(done.returncode, COULD_NOT)
                self.assertIn("]0;title??2J?", done.stderr)
                self.assertFalse(set(commands[0] + "\x07\x9b\x7f") & set(done.stderr))
        done = vpmm("replay", self.trace(SMALL[:-1], f"cut{commands}.csv"), "--driver", "sim")
        self.assertIn("]0;title??2J?", done.stderr, "the warning")
        self.assertIn("]0;title??2J?", done.stdout, "the table")
        self.assertFalse(set(commands[0] + "\x07\x9b\x7f") & set(done.stdout + done.stderr))

    @unittest.skipUnless(os.geteuid() == 0, "only root can make a program that runs as another user")
    def test_a_setuid_program_takes_no_settings_from_its_user(self) -> None:
        program = Path(shutil.copy(VPMM, self.folder))
        self.folder.chmod(0o755)
        command = [str(program), "info"]
        for mode, is_said in ((0o755, True), (0o4755, False)):
            os.chown(program, 65534, -1)
            program.chmod(mode)
            settings = CLEAN | {"VPMM_PAGE_SIZE": "a trap"}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=settings)
            self.assertEqual("a trap" in done.stdout + done.stderr, is_said)

    def test_a_malformed_trace_is_refused_with_file_line_and_reason_and_nothing_runs(self) -> None:
        good, bad = self.trace(), self.trace(HEADER + "a,1,64,0,0\nf,9,0,0,1\n", "bad.csv")
        done = vpmm("replay", good, bad, "--driver", "sim", "--json")
        self.assertEqual(done.returncode, COULD_NOT)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr, f"vpmm: {bad}:3: id 9 is freed but was never allocated\n")

    def test_a_missing_trace_is_an_error_that_names_it(self) -> None:
        done = vpmm("replay", self.folder / "none.csv", "--driver", "sim")
        self.assertEqual(done.returncode, COULD_NOT)
        self.assertIn("none.csv", done.stderr)

    def library(self, source: str, *options: str) -> Path:
        """A shared library that needs nothing of libvpmm."""
        path = self.folder / "library.so"
        command = [os.environ.get("CXX", "c++"), "-std=c++17", "-shared", "-fPIC", f"-I{ROOT / 'include'}", *options]
        done = subprocess.run(
            [*command, "-x", "c++", "-", "-o", str(path)],
            input=source,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return path

    def test_emm_check_passes_the_managers_that_are_built_in(self) -> None:
        for name in ("vpmm", "stream_ordered", "default"):
            done = vpmm("emm-check", name, "--driver", "sim")
            self.assertEqual(done.returncode, OK, done.stdout + done.stderr)
            first, *lines, last = done.stdout.splitlines()
            self.assertEqual(first, f"memory manager {name}, driver sim, device 0")
            self.assertTrue(all(line.startswith(("passed   ", "skipped  ")) for line in lines), done.stdout)
            self.assertRegex(last, r"^\d+ passed, 0 failed, \d skipped$")
            self.assertEqual(done.stderr, "", "what the checks provoke is no news")

    def test_emm_check_loads_a_library_and_says_what_it_does_not_offer(self) -> None:
        done = vpmm("emm-check", self.library(PLUGIN, "-DSHIFT=0"), "--driver", "sim")
        self.assertEqual(done.returncode, OK, done.stdout + done.stderr)
        self.assertIn("memory manager plain, driver sim, device 0\n", done.stdout)
        self.assertIn(": the manager does not offer managed memory\n", done.stdout)

    def test_emm_check_finds_a_fault_and_says_what_was_expected(self) -> None:
        done = vpmm("emm-check", self.library(PLUGIN, "-DSHIFT=8"), "--driver", "sim")
        self.assertEqual(done.returncode, TROUBLE, done.stderr)
        self.assertRegex(
            done.stdout, r"\nFAILED   memory_of_any_size_.*: memory must be aligned to 256 bytes; 1 bytes "
        )

    def test_emm_check_as_json_is_one_object(self) -> None:
        done = vpmm("emm-check", "default", "--json", VPMM_DRIVER="sim")
        self.assertEqual(done.returncode, OK, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(list(report), ["manager", "driver", "device", "passed", "failed", "skipped", "checks"])
        self.assertEqual((report["manager"], report["driver"], report["device"]), ("default", "sim", 0))
        self.assertEqual(report["passed"] + report["failed"] + report["skipped"], len(report["checks"]))
        self.assertTrue(all(list(check) == ["name", "result", "text"] for check in report["checks"]))
        self.assertEqual({check["result"] for check in report["checks"]}, {"passed", "skipped"})

    def test_emm_check_says_why_it_cannot_check(self) -> None:
        missing = vpmm("emm-check", self.folder / "none.so", "--driver", "sim")
        self.assertEqual(missing.returncode, COULD_NOT)
        self.assertIn(f"vpmm: the memory manager {self.folder / 'none.so'} cannot be loaded: ", missing.stderr)
        no_plugin = vpmm("emm-check", self.library("int nothing;"), "--driver", "sim")
        self.assertEqual(no_plugin.returncode, COULD_NOT)
        self.assertIn("library.so is no memory manager: it has no symbol vpmm_emm_plugin_v1\n", no_plugin.stderr)
        no_device = vpmm("emm-check", "default", "--driver", "sim", "--device", "7")
        self.assertEqual((no_device.returncode, no_device.stdout), (COULD_NOT, ""))
        self.assertIn("vpmm: device 7 does not exist: there are 1\n", no_device.stderr)
        no_gpu = vpmm("emm-check", "default", CUDA_VISIBLE_DEVICES="")
        self.assertEqual(no_gpu.returncode, COULD_NOT)
        self.assertIn("simulator", no_gpu.stderr)


if __name__ == "__main__":
    unittest.main()
