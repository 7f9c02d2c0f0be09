#include "parts/throughput/steady_state/subset_order.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace heteroplace::throughput {

namespace {

/*! \brief Hyperedges of each variable. */
std::vector<std::vector<int>> EdgesOf(const Hypergraph& graph) {
  std::vector<std::vector<int>> edges_of(graph.num_variables);
  for (int edge = 0; edge < static_cast<int>(graph.edges.size()); ++edge) {
    for (int variable : graph.edges[edge].pins) edges_of[variable].push_back(edge);
  }
  return edges_of;
}

/*! \brief The variables in an order that leaves few hyperedges open at a time. */
class GreedyOrder {
 public:
  explicit GreedyOrder(const Hypergraph& graph)
      : graph_(graph),
        edges_of_(EdgesOf(graph)),
        is_open_(graph.edges.size(), 0),
        is_done_(graph.num_variables, 0) {
    for (const Hyperedge& edge : graph.edges) left_.push_back(static_cast<int>(edge.pins.size()));
  }

  std::vector<int> Make() {
    std::vector<int> order;
    int next = 0;  // no variable before it is left
    while (static_cast<int>(order.size()) < graph_.num_variables) {
      while (is_done_[next] != 0) ++next;
      order.push_back(near_.empty() ? next : Best());
      Take(order.back());
    }
    return order;
  }

 private:
  /*! \brief Of the variables of open hyperedges the one that leaves fewest open, then the one that
   * touches most, then the first. */
  int Best() const {
    std::tuple<int, int, int> best{std::numeric_limits<int>::max(), 0, 0};
    for (int variable : near_) {
      int opened = 0, touched = 0;
      for (int edge : edges_of_[variable]) {
        touched += is_open_[edge];
        if (is_open_[edge] != 0) {
          opened -= left_[edge] == 1 ? 1 : 0;
        } else {
          opened += left_[edge] > 1 ? 1 : 0;
        }
      }
      best = std::min(best, {opened, -touched, variable});
    }
    return std::get<2>(best);
  }

  void Take(int variable) {
    is_done_[variable] = 1;
    near_.erase(variable);
    for (int edge : edges_of_[variable]) {
      --left_[edge];
      if (is_open_[edge] != 0) continue;
      is_open_[edge] = 1;
      for (int other : graph_.edges[edge].pins) {
        if (is_done_[other] == 0) near_.insert(other);
      }
    }
  }

  const Hypergraph& graph_;
  std::vector<std::vector<int>> edges_of_;
  std::vector<int> left_;         // [edges], variables that are not taken yet
  std::vector<uint8_t> is_open_;  // [edges], some variable is taken
  std::vector<uint8_t> is_done_;  // [num_variables]
  std::set<int> near_;            // not taken, in a hyperedge of one that is
};

/*! \brief First and last place of each hyperedge in an order. */
std::vector<std::pair<int, int>> Extents(const Hypergraph& graph, const std::vector<int>& order) {
  std::vector<int> place(order.size());
  for (size_t at = 0; at < order.size(); ++at) place[order[at]] = static_cast<int>(at);
  std::vector<std::pair<int, int>> extents;
  for (const Hyperedge& edge : graph.edges) {
    int first = graph.num_variables, last = -1;
    for (int variable : edge.pins) {
      first = std::min(first, place[variable]);
      last = std::max(last, place[variable]);
    }
    extents.emplace_back(first, last);
  }
  return extents;
}

using State = SubsetOrder::State;

/*! \brief Leaves out hyperedges, those first that stay open for longest, until there are at most
 * `max_states` distinct states; returns whether it did. */
bool LeaveOut(std::vector<State>& states, const std::vector<std::pair<int, int>>& extents,
              size_t max_states) {
  bool has_left_out = false;
  while (std::set<State>(states.begin(), states.end()).size() > max_states) {
    int longest = -1;
    for (const State& state : states) {
      for (const auto& [edge, is_in] : state) {
        if (longest < 0 || extents[edge].second > extents[longest].second) longest = edge;
      }
    }
    for (State& state : states) {
      std::erase_if(state, [&](const auto& entry) { return entry.first == longest; });
    }
    has_left_out = true;
  }
  return has_left_out;
}

}  // namespace

Hypergraph::Hypergraph(const model::Problem& problem) {
  variable.assign(problem.num_tasks, -1);
  for (int task = 0; task < problem.num_tasks; ++task) {
    if (variable[task] >= 0) continue;
    variable[task] = num_variables;
    if (problem.task_group[task] >= 0) {
      for (int other : problem.group_tasks[problem.task_group[task]]) {
        variable[other] = num_variables;
      }
    }
    ++num_variables;
  }
  std::vector<std::vector<int>> pins(problem.num_tensors);
  for (int task = 0; task < problem.num_tasks; ++task) {
    for (int tensor : problem.task_reads[task]) pins[tensor].push_back(variable[task]);
  }
  for (int tensor = 0; tensor < problem.num_tensors; ++tensor) {
    if (problem.producer[tensor] < 0) continue;  // where it comes from costs no device's subset
    pins[tensor].push_back(variable[problem.producer[tensor]]);
    std::sort(pins[tensor].begin(), pins[tensor].end());
    pins[tensor].erase(std::unique(pins[tensor].begin(), pins[tensor].end()), pins[tensor].end());
    if (pins[tensor].size() > 1) edges.push_back({std::move(pins[tensor]), tensor});
  }
}

SubsetOrder::SubsetOrder(const Hypergraph& graph, int64_t max_states) {
  const std::vector<int> order = GreedyOrder(graph).Make();
  const std::vector<std::vector<int>> edges_of = EdgesOf(graph);
  const std::vector<std::pair<int, int>> extents = Extents(graph, order);
  const auto most =
      static_cast<size_t>(std::max<int64_t>(1, max_states / std::max(1, graph.num_variables)));
  std::vector<State> states{State()};
  for (int place = 0; place < graph.num_variables; ++place) {
    Step step;
    step.variable = order[place];
    std::vector<State> reached;  // by each move
    for (int from = 0; from < static_cast<int>(states.size()); ++from) {
      for (const bool is_in : {false, true}) {
        const auto first_cut = static_cast<int>(cuts.size());
        reached.push_back(Behind(states[from], edges_of[step.variable], extents, place, is_in));
        step.moves.push_back({from, -1, is_in, first_cut, static_cast<int>(cuts.size())});
      }
    }
    if (LeaveOut(reached, extents, most)) is_exact = false;
    std::map<State, int> known;
    states.clear();
    for (size_t move = 0; move < reached.size(); ++move) {
      const auto [found, is_new] = known.emplace(reached[move], static_cast<int>(known.size()));
      if (is_new) states.push_back(reached[move]);
      step.moves[move].to = found->second;
    }
    step.num_states = static_cast<int>(states.size());
    num_states += step.num_states;
    steps.push_back(std::move(step));
  }
}

SubsetOrder::State SubsetOrder::Behind(const State& before, const std::vector<int>& mine,
                                       const std::vector<std::pair<int, int>>& extents, int place,
                                       bool is_in) {
  State behind;
  for (const auto& [edge, is_edge_in] : before) {
    if (std::ranges::binary_search(mine, edge) && is_edge_in != is_in) {
      cuts.push_back(edge);
    } else if (extents[edge].second > place) {
      behind.emplace_back(edge, is_edge_in);
    }
  }
  for (int edge : mine) {
    if (extents[edge].first == place) behind.emplace_back(edge, is_in);
  }
  std::ranges::sort(behind);
  return behind;
}

}  // namespace heteroplace::throughput
