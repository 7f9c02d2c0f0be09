// The routers of random programs, and those of them that choose branches for a whole tensor.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "routed_decisions.h"
#include "routed_text.h"

namespace heteroplace::test {

inline constexpr int kNumRouters = 4;
enum RouterName { kMoe, kInner, kExit, kDeep };
inline const char* const kRouterNames[] = {"moe", "inner", "exit", "deep"};

/*! \brief Writes what routers are given and make, and the branches that are speculated. */
class SpeculatedText : protected RoutedText {
 protected:
  using RoutedText::RoutedText;

  void AddValues() {
    for (int router = 0; router < kNumRouters; ++router) {
      const RouterForm& form = forms_[static_cast<size_t>(router)];
      const std::string branches = std::to_string(form.num_branches()), r = std::to_string(router);
      const std::string seats = std::to_string(form.cells) + "," + branches;
      std::vector<int> given{AddInput("seats" + r, true, seats),
                             AddInput("loads" + r, true, branches),
                             AddInput("offsets" + r, true, branches)};
      std::vector<int> made{Add(0, true, seats, form.cells * form.num_branches()),
                            Add(0, true, branches, form.num_branches()),
                            Add(0, true, branches, form.num_branches())};
      given_.push_back(given);
      made_.push_back(made);
      AddOutput("l" + r, made[1]);
    }
  }

  void Describe(int line, int router, const std::vector<int>& decision,
                const std::vector<std::pair<int, int>>& there) {
    SetRouter(line, kRouterNames[router], forms_[static_cast<size_t>(router)], rows_, decision,
              there);
  }

  void Select(const std::string& name, int loads, const std::vector<int>& values) {
    const int out = Add(0, false, std::to_string(extent_), extent_);
    std::vector<int> reads{loads};
    reads.insert(reads.end(), values.begin(), values.end());
    Call(Queue(), kSelect, reads, {out});
    AddOutput(name, out);
  }

  void DoSpeculated() {
    Line exit{ReserveRouter(), {made_[kExit][1]}, {}}, deep{ReserveRouter(), {made_[kDeep][1]}, {}};
    std::vector<int> values, nested;
    for (int i = 0; i < forms_[kExit].num_branches(); ++i) {
      values.push_back(Add(0, false, std::to_string(extent_), extent_));
    }
    for (int i = 0; i < forms_[kDeep].num_branches(); ++i) {
      nested.push_back(Add(0, false, std::to_string(extent_), extent_));
    }
    std::vector<int> tensors = given_[kDeep];
    tensors.insert(tensors.end(), made_[kDeep].begin(), made_[kDeep].end());
    std::pair<int, int> there;
    const auto decide = [&] {
      std::vector<int> own = given_[kExit];
      own.insert(own.end(), made_[kExit].begin(), made_[kExit].end());
      there = Emit(Core(), "call", std::to_string(kDecide) + " 1 " + Ids(own), given_[kExit],
                   made_[kExit]);
    };
    const auto do_all = [&](const std::string& when) {
      for (size_t b = 0; b < values.size(); ++b) {
        Guarded(Queue(), exit, static_cast<int>(b), when, Once(kTwice, {vector_, values[b]}),
                {vector_}, {values[b]});
      }
      const auto decided =
          Guarded(Core(), exit, 0, when, Once(kDecide, tensors), given_[kDeep], made_[kDeep]);
      for (size_t b = 0; b < nested.size(); ++b) {
        Guarded(Queue(), deep, static_cast<int>(b), when, Once(kTwice, {values[0], nested[b]}),
                {values[0]}, {nested[b]});
      }
      return decided;
    };
    const bool is_early = random_.Below(2) == 0;
    if (is_early) decide();
    do_all("predicted");
    if (!is_early) decide();
    Describe(exit.id, kExit, {made_[kExit][1], -1, -1}, {there});
    Describe(deep.id, kDeep, {made_[kDeep][1], -1, -1}, {do_all("missed")});
    Select("y2", made_[kExit][1], values);
    Select("y3", made_[kDeep][1], nested);
  }

  int extent_ = 0, rows_ = 0;
  int vector_ = -1;
  std::vector<RouterForm> forms_;
  std::vector<std::vector<int>> given_;  // seats, loads, offsets. [kNumRouters]
  std::vector<std::vector<int>> made_;   // the same as routers write them
};

}  // namespace heteroplace::test
