// What is predicted of the decisions of routers, how often that came true, and their recording.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "exec/program/program.h"
#include "exec/requests/slot.h"

namespace heteroplace::exec {

/*! \brief Memory of each of the two buffers of a recording: what comes while one is being read goes
 * into the other. */
inline constexpr int64_t kDecisionBytes = int64_t{8} << 20;

/*! \brief What is recorded of a decision. */
enum class DecisionLevel { kLoads = 1, kCells = 2 };

/*! \brief Branches of a router, by its name. */
struct PredictedBranches {
  std::string router;
  std::vector<int64_t> branches;
};

/*! \brief How predictions of a router came out, in requests that succeeded. */
struct PredictionCounts {
  /*! \brief Requests in which something was predicted, and the router had its turn. */
  int64_t num_requests = 0;
  /*! \brief Of these: the predicted branches were the active ones; or those and more. */
  int64_t num_exact = 0;
  int64_t num_wider = 0;
  /*! \brief Whether something is predicted of requests that begin now. */
  bool is_on = false;
};

/*! \brief Ends the predictions of a router that are too seldom right: the latest requests, in each
 * of which something was predicted of it, and how many of them were right. */
class HitWindow {
 public:
  static constexpr size_t kRequests = 100;
  /*! \brief Of a thousand requests more than so many are right where predictions pay. */
  int32_t least_hits = 0;

  /*! \brief Adds a request; false if the window is full and holds too few that were right. */
  bool Pays(bool is_hit) noexcept;
  void Clear() noexcept { num_requests_ = num_hits_ = 0; }

 private:
  std::array<bool, kRequests> is_hit_{};
  size_t num_requests_ = 0;
  size_t num_hits_ = 0;
};

/*! \brief A part of a recording. */
struct RecordedDecisions {
  /*! \brief A line of JSON for each request and router that had its turn in it, in the order of the
   * requests' ends. */
  std::string lines;
  /*! \brief Requests since the last part that had no room. */
  int64_t num_dropped = 0;
};

/*! \brief Of one engine, whose lock guards it. */
class Decisions {
 public:
  /*! \param program with routers. */
  explicit Decisions(const Program* program);

  /*! \brief Predicts that exactly these branches of some routers will be active, in requests that
   * begin from now on; none: nothing is predicted. Before the first call it is what the program
   * says, or all that has predicted work. \throws Error kExecution, and changes nothing.
   */
  void Predict(const std::vector<PredictedBranches>& all);
  /*! \brief By router, in the order of the program. */
  std::vector<std::pair<std::string, PredictionCounts>> counts() const;

  /*! \throws Error kExecution if it records already, cells are not known, or memory is short. */
  void Start(DecisionLevel level);
  /*! \brief What was recorded since the last call, as it was written. */
  struct Words {
    std::vector<int32_t> words;
    DecisionLevel level;
    int64_t num_dropped;
  };
  /*! \brief Takes it, and ends the recording if so. \throws Error kExecution if nothing is
   * recorded. */
  Words Take(bool ends);
  /*! \brief Gives the memory of words back, to be used again. */
  void GiveBack(Words* words);
  /*! \brief The lines of words. Needs no lock. */
  static std::string LinesOf(const Program& program, const Words& words);

  /*! \brief A request begins in a slot. */
  void Begin(Slot* slot) const noexcept;
  /*! \brief It has succeeded; all decisions lie in the slot. */
  void End(Slot* slot) noexcept;

 private:
  const Router& FindRouter(const std::string& name) const;
  bool HasTurn(Slot* slot, const Router& router) const;
  void Count(Slot* slot, const Router& router);
  bool Record(Slot* slot, const Router& router);
  bool RecordCells(Slot* slot, const Router& router);
  int64_t NumDecided(Slot* slot, const Router& router) const;
  bool Add(int32_t word);
  void Join();

  const Program* program_;
  /*! \brief Of each decision the line with seats, or the first one. */
  std::vector<const Router*> routers_;
  std::vector<bool> is_speculated_;  // [num_routers]: whether the program has predicted work of it
  std::vector<bool> is_of_rows_;     // [num_routers]: whether its cells are rows of what is around
  std::vector<uint8_t> asked_;       // [num_branches] as callers have predicted
  std::vector<uint8_t> predicted_;   // [num_branches] the same where it holds for what is around
  bool predicts_ = false;
  std::vector<PredictionCounts> counts_;  // [num_routers], of the first of a name
  std::vector<HitWindow> windows_;        // [num_routers], likewise
  bool is_recording_ = false;
  DecisionLevel level_ = DecisionLevel::kLoads;
  std::vector<int32_t> words_, spare_;
  int64_t num_requests_ = 0;
  int64_t num_dropped_ = 0;
};

}  // namespace heteroplace::exec
