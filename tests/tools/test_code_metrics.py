"""tests: code_metrics counts members, methods, branches and constants as a reader would."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import code_metrics  # noqa: E402 - needs the path above

POOL = """
namespace vpmm::pool {
enum class Effort { little, much };
struct Forward;
template <typename T>
class Pool : public Base<T> {
 public:
  explicit Pool(Driver& driver, Bytes size = 2 * kMiB) : driver_(driver), sizes_{size}, map_(size) { note(); }
  ~Pool();
  Pool& operator=(const Pool&) = delete;
  bool operator()(int a) const { return a > 0; }
  friend bool operator==(const Pool&, const Pool&) = default;
  using Visit = std::function<void(int)>;
  Bytes bytes() const VPMM_REQUIRES(pool_lock) { return bytes_; }
  template <typename F>
  void each(F&& visit) const;
  struct Pause {
    Bytes bytes = 0;
    std::uint64_t until_ns{0};
  };

 private:
  static constexpr Bytes kMost = 8;
  static_assert(kMost < 9, "fits");
  Driver& driver_;
  std::map<DevicePtr, std::vector<int>> sizes_ VPMM_GUARDED_BY(pool_lock);
  std::function<bool(Bytes wanted)> recall_;  // Bytes not_counted_;
  bool (*compare_)(const Pool&, const Pool&) = nullptr;
  alignas(64) std::atomic<Bytes> bytes_{0};
  Bytes front_ = 0, back_ = 0;
  struct {
    int number;
  } parts_[2];
};
}  // namespace vpmm::pool
"""


def classes(source: str) -> dict[str, tuple[int, int]]:
    return {each.name: (each.members, each.methods) for each in code_metrics.measured([source]).classes}


def branches(source: str) -> list[int]:
    return [each.branches for each in code_metrics.measured([source]).functions]


class Classes(unittest.TestCase):
    def test_members_and_methods_are_counted_for_each_class(self) -> None:
        # driver_, sizes_, recall_, compare_, bytes_, front_, back_, parts_; the constructor to each().
        self.assertEqual(classes(POOL), {"Pool": (8, 6), "Pool::Pause": (2, 0), "Pool::(unnamed)": (1, 0)})

    def test_a_member_that_is_a_function_is_a_callback_and_an_alias_is_none(self) -> None:
        self.assertEqual(code_metrics.measured([POOL]).callbacks, 1)

    def test_the_largest_has_the_most_members(self) -> None:
        code = code_metrics.measured(
            ["struct A { int a; };", "struct B { int a, b; };", "struct C { int a; void f(); };"]
        )
        self.assertEqual([each.name for each in code.largest_classes()], ["B", "C", "A"])


class Functions(unittest.TestCase):
    def test_each_way_that_code_may_take_counts_once(self) -> None:
        body = (
            "if (a && b) return c ? 1 : 2; for (;;) {} while (a || b) {} switch (a) { case 1: break; default: break; }"
        )
        self.assertEqual(branches("int f(int a) { " + body + " }"), [1 + 2 + 1 + 1 + 2 + 1])

    def test_a_reference_to_anything_is_no_branch(self) -> None:
        self.assertEqual(branches("void f(T&& t) { for (auto&& each : t) use(each); }"), [2])

    def test_a_lambda_is_part_of_its_function(self) -> None:
        self.assertEqual(
            branches("int f() { return call([&] { if (a) return 1; return 2; }); } int g() { return 1; }"), [2, 1]
        )

    def test_comments_strings_and_preprocessor_lines_are_no_code(self) -> None:
        source = "#define F(a) \\\n  if (a) {\nint f() { /* if */ g(\"if (a && b) {\", '?'); }  // case\n"
        code = code_metrics.measured([source])
        # int f ( ) { g ( "" , 0 ) ; }
        self.assertEqual([(each.tokens, each.branches) for each in code.functions], [(13, 1)])

    def test_a_value_in_braces_is_no_function(self) -> None:
        source = (
            "const Step kSteps[] = {{1, &f}, {2, &g}};\nstd::array kNames{Name{1}, Name{2}};\nint f() { return 1; }"
        )
        self.assertEqual(branches(source), [1])

    def test_nine_tenths_do_not_exceed_the_p90(self) -> None:
        self.assertEqual(code_metrics.p90(range(1, 11)), 9)
        self.assertEqual(code_metrics.p90(range(1, 102)), 91)
        self.assertEqual(code_metrics.p90([]), 0)


class Constants(unittest.TestCase):
    def test_numbers_count_and_texts_lists_and_what_only_an_assertion_reads_do_not(self) -> None:
        source = """
        constexpr Bytes kLeast = 2;
        inline constexpr std::uint64_t kMost{3};
        constexpr double kShare = 0.5;
        constexpr const char* kName = "x";
        constexpr int kPlaces[] = {1, 2};
        constexpr std::size_t kWords = 4;
        static_assert(sizeof(Words) == kWords * 8);
        int f() { return kLeast + kMost + kShare + kPlaces[0]; }
        """
        self.assertEqual(code_metrics.measured([source]).constants(), {"kLeast", "kMost", "kShare"})


class Tables(unittest.TestCase):
    def test_two_trees_stand_side_by_side(self) -> None:
        trees = [{"pool": code_metrics.measured(sources)} for sources in (["int a;\n"], ["int a;\n", "int b;\n"])]
        self.assertIn("| lines | 1 -> 2 |", code_metrics.rooms_table(trees))

    def test_the_rooms_of_this_tree_are_read_to_their_ends(self) -> None:
        for room in code_metrics.ROOMS:
            sources = code_metrics.sources_in(ROOT, room)
            whole = code_metrics.measured(sources)
            self.assertGreater(len(whole.functions), len(sources), room)
            self.assertEqual(
                [each.name for each in whole.classes if "(" in each.name and "unnamed" not in each.name], []
            )


if __name__ == "__main__":
    unittest.main()
