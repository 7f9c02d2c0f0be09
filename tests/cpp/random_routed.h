// Random programs with routers over cores and fake devices, and what they compute.
//
// Four routers: "moe" sends cells to branches, which do rows of routed buffers, some of them in a
// second memory; "inner" is nested in its branch 0; "exit" chooses branches for a whole tensor and
// is speculated, and so is "deep", nested in its branch 0. What routers decide is an input.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "routed_decisions.h"
#include "speculated_text.h"

namespace heteroplace::test {

inline constexpr int kNumBuffers = 4;  // of routed rows, in each memory

/*! \brief Inputs of a program, and what it makes of them. */
struct RoutedSample {
  std::vector<float> cells, vector;
  std::vector<Decision> decisions;          // [kNumRouters]
  std::vector<std::vector<float>> outputs;  // y0 ... y3
  std::vector<std::vector<int32_t>> loads;  // [kNumRouters], at the end
  bool fails = false;
};

/*! \brief Writes a random program; samples of it have the same form. */
class RoutedWriter : private SpeculatedText {
 public:
  explicit RoutedWriter(Random& random) : SpeculatedText(random) {
    extent_ = random.Below(2) == 0 ? 16 : 8;
    RandomForms();
    rows_ = 0;
    for (int branch = 0; branch < forms_[kMoe].num_branches(); ++branch) {
      const int padded = forms_[kMoe].Padded(branch, forms_[kMoe].cells);
      rows_ += (padded + 1) / 2 * 2;
    }
    AddValues();
    DoMoe();
    DoSpeculated();
    text_ = Finish();
  }

  const std::string& text() const { return text_; }
  const RouterForm& form(int router) const { return forms_[static_cast<size_t>(router)]; }
  int extent() const { return extent_; }
  int rows() const { return rows_; }

  RoutedSample RandomSample(Random& random, bool may_fail) const {
    RoutedSample sample;
    const auto numbers = [&](int count) {
      std::vector<float> values;
      for (int i = 0; i < count; ++i) values.push_back(static_cast<float>(random.Below(8)));
      return values;
    };
    const RouterForm& moe = forms_[kMoe];
    sample.cells = numbers(moe.cells * extent_);
    sample.vector = numbers(extent_);
    for (const RouterForm& form : forms_) sample.decisions.push_back(RandomDecision(form, random));
    sample.fails = sample.decisions[kMoe].has_overflow;
    if (may_fail && random.Below(2) == 0) Spoil(&sample, random);
    for (const Decision& decision : sample.decisions) sample.loads.push_back(decision.loads);
    if (sample.loads[kMoe][0] == 0) sample.loads[kInner].assign(sample.loads[kInner].size(), 0);
    if (sample.loads[kExit][0] == 0) sample.loads[kDeep].assign(sample.loads[kDeep].size(), 0);
    Compute(&sample);
    return sample;
  }

 private:
  /*! \brief A decision that no router may make. */
  void Spoil(RoutedSample* sample, Random& random) const {
    Decision& decision = sample->decisions[kMoe];
    const auto branch = static_cast<size_t>(random.Below(forms_[kMoe].num_branches()));
    const int kind = random.Below(3);
    if (kind == 0) decision.loads[branch] = forms_[kMoe].cells + 1 + random.Below(1000);
    if (kind == 1) decision.loads[branch] = -1 - random.Below(1000);
    if (kind == 2) {
      decision.loads[branch] = 1;
      decision.offsets[branch] = random.Below(2) == 0 ? -1 : rows_;
    }
    decision.seats.assign(decision.seats.size(), 0);  // dispatch looks at no number
    sample->fails = true;
  }

  void Compute(RoutedSample* sample) const {
    const RouterForm& moe = forms_[kMoe];
    std::vector<float> cells(sample->cells.size());
    const auto num_branches = static_cast<size_t>(moe.num_branches());
    for (size_t i = 0; i < cells.size(); ++i) {
      for (size_t branch = 0; branch < num_branches; ++branch) {
        const size_t cell = i / static_cast<size_t>(extent_);
        if (sample->decisions[kMoe].seats[cell * num_branches + branch] == 0) continue;
        float value = sample->cells[i];
        for (int n = 0; n < num_twice_[branch]; ++n) value = 2 * value + 1;
        cells[i] += value;
      }
    }
    const auto sum = [&](int router, int num_twice) {
      std::vector<float> values = sample->vector;
      for (float& value : values) {
        for (int n = 0; n < num_twice; ++n) value = 2 * value + 1;
        int active = 0;
        for (int32_t load : sample->loads[static_cast<size_t>(router)]) active += load != 0;
        value *= static_cast<float>(active);
      }
      return values;
    };
    sample->outputs = {cells, sum(kInner, 1), sum(kExit, 1), sum(kDeep, 2)};
  }

  void RandomForms() {
    forms_.resize(kNumRouters);
    RouterForm& moe = forms_[kMoe];
    moe.cells = 1 + random_.Below(9);
    moe.quantum = extent_ == 16 ? 1 + random_.Below(2) : 2;
    moe.overflow = std::vector<std::string>{"rounds", "rounds", "drop",
                                            "error"}[static_cast<size_t>(random_.Below(4))];
    moe.capacities.resize(1 + static_cast<size_t>(random_.Below(4)));
    for (std::vector<int>& capacities : moe.capacities) {
      for (int capacity : {1, 2, 4, 8}) {
        // Rounds begin at multiples of the largest one.
        if (capacity > 1 && random_.Below(2) == 0) capacities.push_back(capacity);
        if (capacity == 1 && random_.Below(4) == 0) capacities.push_back(capacity);
      }
      if (capacities.empty() || capacities.back() == 1) capacities.push_back(4);
    }
    for (int router : {kInner, kExit, kDeep}) {
      forms_[static_cast<size_t>(router)].capacities.resize(
          1 + static_cast<size_t>(random_.Below(3)), {1});
    }
  }

  /*! \brief A value for dependences: what a branch has in a buffer. Above all tensors. */
  static int PartOf(int space, int buffer, int branch) {
    return 10000 + 1000 * space + 100 * buffer + branch;
  }

  std::vector<int> PartsOf(int space, int buffer) const {
    std::vector<int> parts;
    for (int branch = 0; branch < forms_[kMoe].num_branches(); ++branch) {
      parts.push_back(PartOf(space, buffer, branch));
    }
    return parts;
  }

  std::string Rows() const { return std::to_string(rows_) + "," + std::to_string(extent_); }

  void DoMoe() {
    const int nan = AddInput("nan", false, Rows());
    cells_ = AddInput("cells", false,
                      std::to_string(forms_[kMoe].cells) + "," + std::to_string(extent_));
    vector_ = AddInput("vector", false, std::to_string(extent_));
    for (int space = 0; space < 2; ++space) {
      for (int buffer = 0; buffer < kNumBuffers; ++buffer) {
        // A tensor of the largest capacity has a place, too, where no load is so large.
        const int tensor = Add(space, false, Rows(), std::max(rows_, 8) * extent_);
        buffers_[space].push_back(tensor);
        Emit(Queue(), "copy", std::to_string(nan) + " " + std::to_string(tensor), {nan},
             PartsOf(space, buffer));
      }
    }
    const Line near = Decide(kMoe, given_[kMoe], made_[kMoe]);
    const Line far = CopyDecision(near);
    const std::vector<int>& made = made_[kMoe];
    Emit(Queue(), "call",
         std::to_string(kDispatch) + " 1 " + Ids({cells_, made[0], made[2], buffers_[0][0]}),
         {cells_, made[0], made[2]}, PartsOf(0, 0));
    num_twice_.resize(static_cast<size_t>(forms_[kMoe].num_branches()));
    const bool has_group = random_.Below(2) == 0;
    for (int branch = 0; branch < forms_[kMoe].num_branches(); ++branch) {
      if (!has_group || random_.Below(5) == 0) {
        DoBranch(branch, near, far);
      } else {
        grouped_.push_back(branch);
      }
    }
    if (!grouped_.empty()) DoGroup(random_.Below(2) == 0 ? near : far);
    DoInner(near);
    const int out =
        Add(0, false, std::to_string(forms_[kMoe].cells) + "," + std::to_string(extent_),
            forms_[kMoe].cells * extent_);
    std::vector<int> reads = PartsOf(0, kNumBuffers - 1);
    reads.insert(reads.end(), {made[0], made[2]});
    Emit(Queue(), "call",
         std::to_string(kCombine) + " 1 " +
             Ids({buffers_[0][kNumBuffers - 1], made[0], made[2], out}),
         reads, {out});
    AddOutput("y0", out);
  }

  Line Decide(int router, std::vector<int> tensors, const std::vector<int>& made) {
    const int line = ReserveRouter();
    tensors.insert(tensors.end(), made.begin(), made.end());
    const auto there = Emit(Core(), "call", std::to_string(kDecide) + " 1 " + Ids(tensors),
                            given_[static_cast<size_t>(router)], made);
    const bool moves_rows = router == kMoe;
    Describe(line, router, {made[1], moves_rows ? made[2] : -1, moves_rows ? made[0] : -1},
             {there});
    return {line, {made[1], made[2]}, {}};
  }

  /*! \brief The decision of "moe" in the second memory. */
  Line CopyDecision(const Line& near) {
    Line far{ReserveRouter(), {}, {}};
    std::vector<std::pair<int, int>> there;
    const int num_branches = forms_[kMoe].num_branches();
    for (int tensor : near.reads) {
      const int copy = Add(1, true, std::to_string(num_branches), num_branches);
      there.push_back(Emit(Queue(), "copy", std::to_string(tensor) + " " + std::to_string(copy),
                           {tensor}, {copy}));
      far.reads.push_back(copy);
      far.writers.push_back(there.back().first);
    }
    Describe(far.id, kMoe, {far.reads[0], far.reads[1], -1}, there);
    return far;
  }

  void DoBranch(int branch, const Line& near, const Line& far) {
    const int space = random_.Below(2);
    const auto line = [&]() -> const Line& { return random_.Below(2) == 0 ? near : far; };
    const auto copy_rows = [&](int from, int to, int buffer) {
      const Line& guard = line();
      const std::string what = std::to_string(buffers_[from][static_cast<size_t>(buffer)]) + "@ " +
                               std::to_string(buffers_[to][static_cast<size_t>(buffer)]) + "@";
      Guarded(Queue(guard.writers), guard, branch, "active", what, {PartOf(from, buffer, branch)},
              {PartOf(to, buffer, branch)}, /*is_call=*/false);
    };
    if (space == 1) copy_rows(0, 1, 0);
    for (int step = 0; step + 1 < kNumBuffers; ++step) {
      const int kernel = RandomKernel(branch);
      for (const std::vector<int>& capacities : RandomParts(branch)) {
        DoStep(branch, line(), space, step, kernel, capacities);
      }
    }
    if (space == 1) copy_rows(1, 0, kNumBuffers - 1);
  }

  /*! \brief Does some branches side by side; in branch 0 the nested router may decide last. */
  void DoGroup(const Line& line) {
    std::vector<GroupedCall> calls;
    for (int branch : grouped_) {
      for (int step = 0; step + 1 < kNumBuffers; ++step) {
        const int kernel = RandomKernel(branch);
        for (const std::vector<int>& capacities : RandomParts(branch)) {
          calls.push_back({branch,
                           StepCalls(0, step, kernel, capacities),
                           {PartOf(0, step, branch)},
                           {PartOf(0, step + 1, branch)}});
        }
      }
      if (branch != 0 || random_.Below(2) == 0) continue;
      inner_call_ = static_cast<int>(calls.size());
      calls.push_back({0, CallOf(kDecide, InnerTensors()), given_[kInner], made_[kInner]});
    }
    const std::vector<std::pair<int, int>> places = Group(Queue(line.writers), line, calls);
    if (inner_call_ >= 0) inner_there_ = places[static_cast<size_t>(inner_call_)];
  }

  int RandomKernel(int branch) {
    const int kernel = random_.Below(3) == 0 ? kKeepPositive : kTwice;
    num_twice_[static_cast<size_t>(branch)] += kernel == kTwice ? 1 : 0;
    return kernel;
  }

  /*! \brief At some capacities a call may be fused with another one, whose call then does both. */
  std::vector<std::vector<int>> RandomParts(int branch) {
    std::vector<std::vector<int>> parts(2), found;
    for (int capacity : forms_[kMoe].capacities[static_cast<size_t>(branch)]) {
      parts[random_.Below(4) == 0 ? 1 : 0].push_back(capacity);
    }
    for (const std::vector<int>& part : parts) {
      if (!part.empty()) found.push_back(part);
    }
    return found;
  }

  void DoStep(int branch, const Line& line, int space, int step, int kernel,
              const std::vector<int>& capacities) {
    const int queue = Queue(line.writers);
    int threads = 1;
    if (kernel == kTwice && queue < num_cores_ && num_cores_ == 2 && random_.Below(2) == 0) {
      threads = 2;
      body_ += "join " + std::to_string(1 - queue) + " 0 " + std::to_string(queue) + " " +
               std::to_string(length_[static_cast<size_t>(queue)]) + " -\n";
      ++length_[static_cast<size_t>(1 - queue)];
    }
    Guarded(queue, line, branch, "active",
            std::to_string(threads) + " " + StepCalls(space, step, kernel, capacities),
            {PartOf(space, step, branch)}, {PartOf(space, step + 1, branch)});
  }

  std::string StepCalls(int space, int step, int kernel, const std::vector<int>& capacities) {
    std::string calls;
    for (int capacity : capacities) {
      calls += (calls.empty() ? "" : ";") + std::to_string(capacity) + "=" +
               std::to_string(kernel) + "(" + std::to_string(RowsAt(space, step, capacity)) + "@," +
               std::to_string(RowsAt(space, step + 1, capacity)) + "@)";
    }
    return calls;
  }

  /*! \brief A tensor of so many rows where a buffer begins. */
  int RowsAt(int space, int buffer, int capacity) {
    int& tensor = rows_at_[{space, buffer, capacity}];
    if (tensor != 0) return tensor;
    const int64_t place =
        places_[static_cast<size_t>(buffers_[space][static_cast<size_t>(buffer)])];
    return tensor =
               Add(space, false, std::to_string(capacity * extent_), capacity * extent_, place);
  }

  /*! \brief A router in branch 0 of "moe". Its loads are copied to the second memory. */
  void DoInner(const Line& outer) {
    const std::vector<int>& made = made_[kInner];
    Line near{ReserveRouter(), {made[1]}, {}}, far{ReserveRouter(), {}, {}};
    auto there = inner_there_;
    if (inner_call_ < 0) {
      there =
          Guarded(Core(), outer, 0, "active", Once(kDecide, InnerTensors()), given_[kInner], made);
    } else if (there.first >= num_cores_) {
      near.writers = {there.first};
    }
    Describe(near.id, kInner, {made[1], -1, -1}, {there});
    const int num_branches = forms_[kInner].num_branches();
    const int copy = Add(1, true, std::to_string(num_branches), num_branches);
    const auto copied =
        Guarded(Queue(), outer, 0, "active", std::to_string(made[1]) + " " + std::to_string(copy),
                {made[1]}, {copy}, /*is_call=*/false);
    far.reads = {copy};
    far.writers = {copied.first};
    Describe(far.id, kInner, {copy, -1, -1}, {copied});
    std::vector<int> values;
    for (int branch = 0; branch < num_branches; ++branch) {
      values.push_back(Add(0, false, std::to_string(extent_), extent_));
      const Line& line = random_.Below(2) == 0 ? near : far;
      Guarded(Queue(line.writers), line, branch, "active", Once(kTwice, {vector_, values.back()}),
              {vector_}, {values.back()});
    }
    Select("y1", made[1], values);
  }

  std::vector<int> InnerTensors() const {
    std::vector<int> tensors = given_[kInner];
    tensors.insert(tensors.end(), made_[kInner].begin(), made_[kInner].end());
    return tensors;
  }

  int cells_ = -1;
  std::vector<int> num_twice_;               // [branches of "moe"]
  std::vector<int> grouped_;                 // branches of "moe" that are done side by side
  int inner_call_ = -1;                      // among the calls of that group, if it is there
  std::pair<int, int> inner_there_;          // and where
  std::vector<int> buffers_[2];              // tensors of whole buffers, by space
  std::map<std::vector<int>, int> rows_at_;  // by space, buffer, capacity
  std::string text_;
};

}  // namespace heteroplace::test
